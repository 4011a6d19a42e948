"""Read what selections read of shards: columns and vectors, other scores, target examples."""
