"""Answer for the documents of a workspace from its files, and remove some of them."""
