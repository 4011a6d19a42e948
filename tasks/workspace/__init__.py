"""The workspace: keys, stage files, manifests, the record of runs, the catalog."""
