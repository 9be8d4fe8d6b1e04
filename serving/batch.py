"""Answers that are decoded together: one token each per step, joining and leaving at any time.

Shapes: B rows, P cached tokens of the longest row, KV key/value heads, D features of a head, V
vocabulary. Shorter rows are padded on the left, where the mask hides the padding, so that a row's
logits do not depend on who shares its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.onnx_bundle import OnnxModel, Past

CHUNK = 128
"""Tokens of a prompt that are read at once, so that others need not wait for a long prompt."""


@dataclass
class Prefill:
    """A prompt that is being read, `CHUNK` tokens at a time."""

    prompt: np.ndarray
    adapter: str | None
    cache: Past | None = None
    """Keys and values of what has been read; None before the first step."""
    read: int = 0

    def step(self, model: OnnxModel) -> np.ndarray | None:
        """Read on; the logits [V] after the last token once all is read, else None."""
        end = min(self.read + CHUNK, len(self.prompt))
        ids_BS = self.prompt[None, self.read : end]
        positions_BS = np.arange(self.read, end)[None]
        mask_BT = np.ones((1, end), bool)
        logits_BSV, self.cache = model.forward(
            ids_BS, mask_BT, positions_BS, self.cache, self.adapter
        )
        self.read = end
        return logits_BSV[0, -1] if end == len(self.prompt) else None


class Batch:
    """The cache of several answers under one adapter."""

    def __init__(self, adapter: str | None) -> None:
        self.adapter = adapter
        self._past: Past = []
        self._mask_BP = np.zeros((0, 0), bool)

    def __len__(self) -> int:
        return len(self._mask_BP)

    def join(self, prefill: Prefill) -> None:
        """Add a row at the end: a prompt that has been read."""
        past = prefill.cache
        assert past is not None, "a prompt joins after it has been read"
        cached = past[0][0].shape[2]
        row_1P = np.ones((1, cached), bool)
        if not len(self):
            self._past, self._mask_BP = past, row_1P
            return
        longest = max(cached, self._mask_BP.shape[1])
        self._mask_BP = np.concatenate(
            [_padded(self._mask_BP, longest, 1), _padded(row_1P, longest, 1)]
        )
        self._past = [
            tuple(
                np.concatenate([_padded(ours, longest, 2), _padded(new, longest, 2)])
                for ours, new in zip(pair, pair_of_row, strict=True)
            )
            for pair, pair_of_row in zip(self._past, past, strict=True)
        ]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows, and the columns that only those needed."""
        if len(rows) == len(self):
            return
        if not rows:
            self._past, self._mask_BP = [], np.zeros((0, 0), bool)
            return
        mask_BP = self._mask_BP[list(rows)]
        first = int(mask_BP.any(axis=0).argmax())
        self._mask_BP = mask_BP[:, first:]
        self._past = [
            (keys[list(rows), :, first:], values[list(rows), :, first:])
            for keys, values in self._past
        ]

    def step(self, model: OnnxModel, ids_B: np.ndarray) -> np.ndarray:
        """Feed one token a row; logits [B, V] of the next."""
        ones = np.ones((len(self), 1), bool)
        self._mask_BP = np.concatenate([self._mask_BP, ones], axis=1)
        positions_B1 = self._mask_BP.sum(axis=1, keepdims=True) - 1
        logits_B1V, self._past = model.forward(
            ids_B[:, None], self._mask_BP, positions_B1, self._past, self.adapter
        )
        return logits_B1V[:, 0]


def _padded(array: np.ndarray, length: int, axis: int) -> np.ndarray:
    """Zeros (false) before the array's entries along `axis`, up to `length`."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (length - array.shape[axis], 0)
    return np.pad(array, widths)
