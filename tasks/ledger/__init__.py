"""Answer for the documents of a workspace and for new ones, compare two, and write its files without some."""
