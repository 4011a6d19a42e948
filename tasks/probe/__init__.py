"""Train models on selections of a corpus and on datasets, and write the page that compares them."""
