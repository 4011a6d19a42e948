"""Find the documents that are most similar to each other, exactly."""
