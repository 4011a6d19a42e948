"""Files: atomic writes, object storage, retries, errors."""
