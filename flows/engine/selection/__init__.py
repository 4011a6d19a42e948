"""Plan what comes before the selection from blocks."""
