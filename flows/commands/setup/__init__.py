"""List what can be set, before a run."""
