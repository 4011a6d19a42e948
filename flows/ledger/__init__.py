"""Answer for the documents of a workspace, and remove some of them, each as a Prefect flow."""
