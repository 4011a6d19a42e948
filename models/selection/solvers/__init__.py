"""Maximise the objective, or select by a baseline; one module per solver."""
