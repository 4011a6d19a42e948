"""Encode texts as unit vectors, with any sentence-transformers model or an encoder fitted on the corpus."""
