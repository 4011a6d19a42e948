"""Find near-duplicates by their words: signatures of texts, and clusters of pairs."""
