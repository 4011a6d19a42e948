"""Answer for the documents of a workspace and for new ones, compare two, and remove some, each as a Prefect flow."""
