"""Run the stages in order with Prefect, from the command or a deployment, and show their progress."""
