"""The raw documents: find and read the source files, check their columns."""
