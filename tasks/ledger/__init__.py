"""Answer for the documents of a workspace, and for those that may join it, from its files."""
