"""Run the pipeline: what is checked before a run, and how it ends."""
