"""Which rows begin alike, so that what they share is read once: the few-shot examples of a subject.

Rows are sorted, and the sorted list is cut where neighbours have little in common. A stretch of
rows costs, in tokens read and with PASS for every forward pass,

    alone:     sum of lengths                             + passes of batches * PASS
    together:  shared + sum of (length - shared)          + (1 + passes of batches) * PASS
    in parts:  the sum over the parts between the neighbours that have least in common

and the cheapest is taken.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PASS = 128
"""What a forward pass costs beside its tokens, in tokens."""
LEAST = 16
"""Fewer shared tokens are not worth remembering."""
DEEPEST = min(200, sys.getrecursionlimit() // 4)
"""Cuts within cuts; real prompts have a few."""


@dataclass(frozen=True)
class Stretch:
    """Rows with this many first tokens in common; 0 where they are read alone."""

    rows: tuple[int, ...]
    shared: int


def stretches(rows: Sequence[np.ndarray], most_shared: Sequence[int], batch: int) -> list[Stretch]:
    """Divide rows (int32 [T] each) by what they share.

    `most_shared` limits it for each row: something must be left to be read. The result depends on
    the rows and the batch size alone; rows that are read alone come last, as one stretch.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i].astype(">u4").tobytes())
    common = np.array(
        [
            min(_common(rows[a], rows[b]), most_shared[a], most_shared[b])
            for a, b in itertools.pairwise(order)
        ],
        np.int64,
    )
    lengths = np.array([len(rows[i]) for i in order], np.int64)
    total = np.concatenate([[0], np.cumsum(lengths)])

    def best(begin: int, end: int, depth: int) -> tuple[float, list[tuple[int, int, int]]]:
        """Cost of the rows begin..end, and its stretches as (begin, end, shared)."""
        count, tokens = end - begin, int(total[end] - total[begin])
        cost = tokens + PASS * count / batch
        found = [(begin, end, 0)]
        if count == 1:
            return cost, found
        between = common[begin : end - 1]
        shared = int(between.min())
        if shared >= LEAST:
            together = tokens - (count - 1) * shared + PASS * (1 + -(-count // batch))
            if together < cost:
                cost, found = together, [(begin, end, shared)]
        if depth < DEEPEST and between.max() >= LEAST:
            edges = [begin, *(begin + 1 + np.flatnonzero(between == shared)).tolist(), end]
            parts = [best(a, b, depth + 1) for a, b in itertools.pairwise(edges)]
            if sum(part[0] for part in parts) < cost:
                cost = sum(part[0] for part in parts)
                found = [one for part in parts for one in part[1]]
        return cost, found

    if not rows:
        return []
    alone: list[int] = []
    together = []
    for begin, end, shared in best(0, len(rows), 0)[1]:
        members = order[begin:end]
        if shared:
            together.append(Stretch(tuple(members), shared))
        else:
            alone += members
    return together + ([Stretch(tuple(alone), 0)] if alone else [])


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Number of first tokens that are equal."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length
