"""Text to a tokenizer and token shards."""
