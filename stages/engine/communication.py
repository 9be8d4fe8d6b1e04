"""How long the collectives inside a step's graphs take, measured alone.

No clock can be read inside a graph. So the all-reduces that a step makes are counted, and one of
each size is timed between graphs, when a run starts. What passes between graphs (a pipeline's
stream, sums over stages) is timed where it happens.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.architecture import Architecture
from stages.engine.groups import Mesh, summed

TRIES = 2


@dataclass(frozen=True)
class AllReduce:
    """One kind of it."""

    group: str
    numbers: int
    """float32 each."""


def all_reduces(
    shape: Architecture,
    mesh: Mesh,
    rows: int,
    micro_batches: int,
    over_data: Sequence[int],
    computes_again: bool,
) -> "Counter[AllReduce]":
    """Those that one process makes inside the graphs of a step, with how many of each.

    `shape` is what this process builds, `rows` are the tokens of a micro-batch, `over_data` the
    numbers in each of those over the data processes; who `computes_again` on the way back makes its
    way forward twice.
    """
    place = mesh.place
    found: Counter[AllReduce] = Counter()
    if mesh.data is not None:
        found.update(AllReduce(mesh.data, numbers) for numbers in over_data)
    if mesh.tensor is not None:
        forward = 2 if computes_again else 1
        times = shape.layers * (2 * forward + 2) + place.first * forward + place.last
        found[AllReduce(mesh.tensor, rows * shape.hidden_size)] += micro_batches * times
        if place.last:
            found[AllReduce(mesh.tensor, place.layout.tensor * 2 * rows)] += micro_batches
    return found


def measure(found: "Counter[AllReduce]") -> float:
    """Seconds that these take; all processes must call it at the same time."""
    total = 0.0
    for kind, times in found.items():
        numbers = np.zeros(kind.numbers, np.float32)
        best = float("inf")
        for _ in range(TRIES):
            summed(np.zeros(1, np.float32), kind.group)  # so that all begin together
            begin = time.perf_counter()
            summed(numbers, kind.group)
            best = min(best, time.perf_counter() - begin)
        total += times * best
    return total
