"""One unit of work each: read a shard, call a model, write a shard atomically."""
