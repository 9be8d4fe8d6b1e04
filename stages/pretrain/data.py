"""Which tokens each step sees: a function of corpus, seed and step, never of the layout."""

import numpy as np

from artifacts.corpus import TokenStream
from stages.engine.training import Batch

IGNORED = -100


class Windows:
    """A split as windows of `length` + 1 tokens, each beginning at the last of the one before.

    The extra token is the last one's label, so that every token but the first is predicted once
    an epoch.
    """

    def __init__(self, stream: TokenStream, length: int, seed: int):
        self.stream, self.length, self.seed = stream, length, seed
        self.count = max(stream.tokens - 1, 0) // length
        """Whole windows; a shorter rest is left out."""
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def position(self, sample: int) -> tuple[int, int]:
        """(epoch, index in the epoch's order) of sample number `sample` since the start."""
        return divmod(sample, self.count)

    def window(self, sample: int) -> int:
        """Which window sample number `sample` is; each epoch is a new order of all windows."""
        epoch, index = self.position(sample)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
            self._epoch = epoch
        return int(self._order[index])

    def batch(self, samples: range) -> Batch:
        """The samples with these numbers, as rows."""
        rows = [
            self.stream.slice(self.window(sample) * self.length, self.length + 1)
            for sample in samples
        ]
        tokens = np.stack(rows)
        return Batch(tokens[:, :-1], tokens[:, 1:])


def step_samples(
    step: int, *, sequences: int, micro_size: int, rank: int, processes: int
) -> list[range]:
    """Sample numbers of this rank's micro-batches in optimiser step `step`, the first being 1."""
    begin = (step - 1) * sequences
    stride = micro_size * processes
    return [
        range(start, start + micro_size)
        for start in range(begin + rank * micro_size, begin + sequences, stride)
    ]


def validation_batches(
    stream: TokenStream, *, length: int, windows: int, micro_size: int, rank: int, processes: int
) -> list[Batch]:
    """This rank's share of the first `windows` windows of a split, in order.

    Every rank gets the same number of batches of one shape; what is missing has no labels.
    """
    available = -(-max(stream.tokens - 1, 0) // length)
    windows = min(windows, available)
    stride = micro_size * processes
    batches = []
    for begin in range(0, windows, stride):
        ids = np.zeros((micro_size, length), np.int32)
        labels = np.full((micro_size, length), IGNORED, np.int32)
        for row in range(micro_size):
            window = begin + rank * micro_size + row
            if window >= windows:
                continue
            start = window * length
            tokens = stream.slice(start, min(length + 1, stream.tokens - start))
            ids[row, : len(tokens) - 1] = tokens[:-1]
            labels[row, : len(tokens) - 1] = tokens[1:]
        batches.append(Batch(ids, labels))
    return batches
