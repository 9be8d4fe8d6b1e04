"""A checkpoint becomes a Hugging Face directory, proved by reading it back."""
