"""The MindSpore model, its training loop and its inference: shared by the stages that run it."""
