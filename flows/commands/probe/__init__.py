"""Implement `fineweb-mask probe`."""
