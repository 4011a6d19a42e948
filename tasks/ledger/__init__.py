"""Answer for the documents of a workspace, and compare two workspaces or datasets."""
