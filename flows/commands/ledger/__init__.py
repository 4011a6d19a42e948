"""Ask what became of documents and what new ones would add, compare two selections, and remove documents."""
