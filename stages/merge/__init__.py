"""A base model and a LoRA adapter become one model."""
