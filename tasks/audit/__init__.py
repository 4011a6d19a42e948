"""Measure the pipeline's own judgements: what a score says inside groups, and what every dropping step drops."""
