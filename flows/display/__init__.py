"""Show a person the progress of a run: bars, logs, the Prefect UI."""
