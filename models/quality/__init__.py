"""Score documents: one float32 each. A new scorer is one class and one entry in `SCORERS` (registry.py)."""
