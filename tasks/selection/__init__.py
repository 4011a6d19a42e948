"""Selections side by side: sweeps, comparisons, selections from a file of vectors."""
