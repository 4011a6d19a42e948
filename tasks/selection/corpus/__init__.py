"""Select from a whole corpus at once, shard by shard: learn a threshold policy, and keep it."""
