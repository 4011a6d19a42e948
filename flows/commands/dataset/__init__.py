"""Work on a dataset that is there: check it, export it, upload it."""
