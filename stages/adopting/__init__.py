"""A LoRA adapter from elsewhere becomes an adapter of the store, bound to its base."""
