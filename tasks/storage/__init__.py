"""Write files atomically, locally and in object storage, with retries and clear errors."""
