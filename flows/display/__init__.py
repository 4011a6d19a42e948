"""What a person sees of a run: bars, logs, the Prefect UI."""
