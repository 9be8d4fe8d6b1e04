"""A Hugging Face directory from elsewhere becomes a checkpoint of the store."""
