"""Plan the pipeline: which job comes when."""
