"""A new model's weights: drawn by seed, tensor by tensor, independent of engine and layout."""

import math
from collections.abc import Iterator

import numpy as np

from artifacts.architecture import Architecture

RESIDUAL = ("o_proj.weight", "down_proj.weight")
"""What adds to the residual stream; drawn smaller, so that the stream does not grow with depth."""


def initial_tensors(
    shape: Architecture, seed: int, *, std: float, embedding_std: float
) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, float32 tensor) of every tensor, in their order.

    Matrices: normal with `std`, those of `RESIDUAL` with std / sqrt(2 * layers). Embedding and
    untied head: normal with `embedding_std`. Norms 1, biases 0.
    """
    for index, (name, size) in enumerate(shape.tensor_shapes().items()):
        if name.endswith("norm.weight"):
            yield name, np.ones(size, np.float32)
        elif name.endswith("bias"):
            yield name, np.zeros(size, np.float32)
        else:
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                scale = embedding_std
            elif name.endswith(RESIDUAL):
                scale = std / math.sqrt(2 * shape.layers)
            else:
                scale = std
            # A stream of its own for each tensor, so that one can be drawn without the others.
            draw = np.random.default_rng([seed, index]).standard_normal(size, np.float32)
            yield name, draw * np.float32(scale)
