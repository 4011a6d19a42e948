"""Compare selections: by several selectors, at many weights of quality, of one file of vectors."""
