"""The order of the stages: which task runs on which shard, with which engine; the command; progress."""
