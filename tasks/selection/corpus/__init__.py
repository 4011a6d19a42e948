"""Select from a whole corpus at once, shard by shard: learn a rule, and keep it."""
