"""Model + instructions -> LoRA adapter."""
