"""Fit models on the corpus, which are kept while it grows."""
