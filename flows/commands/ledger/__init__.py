"""Ask what became of documents, compare two selections, and remove documents."""
