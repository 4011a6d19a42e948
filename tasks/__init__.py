"""Build the output of one job at a time: one module per stage, and folders for what the stages share."""
