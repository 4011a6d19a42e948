"""Handle signals to the command, and run the Prefect server that lives as long as it."""
