"""Find exact duplicates across shards: sort each shard's hashes, compare them bucket by bucket, list them by shard."""
