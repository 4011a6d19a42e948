"""Write, verify and publish the dataset: rows, files, card."""
