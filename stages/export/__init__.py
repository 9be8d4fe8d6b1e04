"""A Hugging Face directory becomes an ONNX bundle, with the proof that it agrees."""
