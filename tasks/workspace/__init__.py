"""Define jobs and keep what they write: keys, stage files, manifests, the catalog, records of runs."""
