"""Find exact and near-duplicates: sort the hashes of each shard, compare all bucket by bucket, list them by shard."""
