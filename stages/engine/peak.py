"""The most that this device's matrix product gives, as what a step's speed is measured by."""

import time

import numpy as np
from mindspore import Tensor, ops

from stages.engine.groups import Mesh, summed_over_all
from stages.engine.precision import Precision, in_precision

SIZE, WARM_UP, TRIES = 1024, 2, 4


def measured_peak(mesh: Mesh, precision: Precision = "fp32") -> float:
    """FLOP/s of all processes together, each measuring its own at the same time as the rest.

    Processes that share cores so share the peak as well.
    """
    x = Tensor(np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32))
    product = in_precision(ops.MatMul(), precision)
    best = float("inf")
    summed_over_all(mesh, 0.0)
    for i in range(WARM_UP + TRIES):
        begin = time.perf_counter()
        product(x, x).asnumpy()
        if i >= WARM_UP:
            best = min(best, time.perf_counter() - begin)
    return summed_over_all(mesh, 2 * SIZE**3 / best)
