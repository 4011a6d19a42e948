"""Find exact and near-duplicates: sketch the texts of each shard, compare all in DuckDB, list them by shard."""
