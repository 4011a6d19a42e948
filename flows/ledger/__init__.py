"""Answer for the documents of a workspace, and compare two workspaces, each as a Prefect flow."""
