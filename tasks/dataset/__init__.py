"""The finished dataset: rows, files, card, verification, publication."""
