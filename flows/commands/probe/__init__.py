"""Implement `fineweb-mask probe` and `score-weights`."""
