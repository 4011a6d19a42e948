"""Describe a set of documents: the geometry of its vectors, its distinctive words, its groups."""
