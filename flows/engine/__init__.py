"""Plan the jobs of a pipeline, schedule them on Prefect, inspect what a workspace holds."""
