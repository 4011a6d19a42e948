"""Run jobs on a Ray cluster."""
