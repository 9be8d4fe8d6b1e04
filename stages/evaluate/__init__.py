"""Model to scores: MMLU and C-Eval through lm-eval, over MindSpore and onnxruntime."""
