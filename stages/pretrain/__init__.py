"""Token shards -> a checkpoint."""
