"""An adapter's first values: A random, B zero, so that training starts at the base."""

import numpy as np

from artifacts.adapter import Pair, adapter_shapes
from artifacts.architecture import Architecture


def initial_adapter(
    architecture: Architecture, targets: tuple[str, ...], rank: int, seed: int
) -> dict[str, Pair]:
    """Hugging Face module name -> (A, B) float32, drawn from a stream of its own for each module.

    A is uniform within 1 / sqrt(in): Kaiming's with a = sqrt(5), as peft draws it. B is zero.
    """
    pairs = {}
    for index, (module, (a, b)) in enumerate(adapter_shapes(architecture, targets, rank).items()):
        bound = 1 / np.sqrt(a[1])
        draw = np.random.default_rng([seed, index]).uniform(-bound, bound, a)
        pairs[module] = (draw.astype(np.float32), np.zeros(b, np.float32))
    return pairs
