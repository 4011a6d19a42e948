"""Compare selections: by several variants, and of one file of vectors."""
