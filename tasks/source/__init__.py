"""Find and read the source files, and check their columns."""
