"""Answer for the documents of a workspace, compare two, and remove documents, each as a Prefect flow."""
