"""Tell where a document stands among others, what a sample says of all, and which documents were removed."""
