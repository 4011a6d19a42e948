"""Check, export and upload a dataset that is there."""
