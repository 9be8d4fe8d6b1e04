"""Scoring requests as rows of tokens: equal work shared, rows of like length batched together.

A request asks how likely a continuation is after a context. Requests whose context and all but the
last token of whose continuation are equal need the same forward pass, so they share one row: four
answer letters cost one row, not four.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from stages.evaluate.backends import Backend, Prefix, log_sum_exp
from stages.evaluate.shared import stretches

Scored = tuple[float, bool]
"""Log-likelihood of a continuation, and whether greedy decoding would produce it."""


@dataclass
class Row:
    """One row of input tokens and what is asked about it."""

    ids: np.ndarray
    """int32 [T]: context, and the continuation without its last token."""
    context: int
    """Number of context tokens, at least 1."""
    requests: list[int] = field(default_factory=list)
    """Indices of the requests it answers."""
    last: list[int] = field(default_factory=list)
    """For each of them, the continuation's last token."""


def make_rows(contexts: Sequence[np.ndarray], continuations: Sequence[np.ndarray]) -> list[Row]:
    """Rows for these requests, in the order of first appearance.

    Both hold int32 ids, at least one each.
    """
    rows: dict[tuple[int, bytes], Row] = {}
    for index, (context, continuation) in enumerate(zip(contexts, continuations, strict=True)):
        ids = np.concatenate([context, continuation[:-1]]).astype(np.int32)
        row = rows.setdefault((len(context), ids.tobytes()), Row(ids, len(context)))
        row.requests.append(index)
        row.last.append(int(continuation[-1]))
    return list(rows.values())


@dataclass(frozen=True)
class Batch:
    """Rows of one forward pass, and how many first tokens they share and have read once."""

    rows: tuple[Row, ...]
    shared: int


def batches(rows: Sequence[Row], size: int) -> Iterator[Batch]:
    """Rows in batches of `size`: those that begin alike together, and the longest first, so that
    what does not fit into memory shows at once.

    Rows that ask about one token and rows that ask about several are kept apart, since they take
    different passes. The batches depend on the rows and the size alone.
    """
    for several in (False, True):
        kind = [row for row in rows if (len(row.ids) > row.context) == several]
        found = stretches([row.ids for row in kind], [row.context - 1 for row in kind], size)
        for stretch in sorted(found, key=lambda one: (-one.shared, one.rows)):
            alike = sorted(
                (kind[i] for i in stretch.rows), key=lambda row: (-len(row.ids), row.requests[0])
            )
            for begin in range(0, len(alike), size):
                yield Batch(tuple(alike[begin : begin + size]), stretch.shared)


class Scorer:
    """Answers batches, remembering the prefix of the last one."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._ids, self._prefix = b"", None

    def score(self, batch: Batch) -> list[list[Scored]]:
        """For each row of one batch, the answer to each of its requests."""
        prefix = self._read(batch.rows[0].ids[: batch.shared])
        if len(batch.rows[0].ids) == batch.rows[0].context:
            return self._one_token(batch, prefix)
        return self._several(batch, prefix)

    def _read(self, ids_P: np.ndarray) -> Prefix:
        if not len(ids_P):
            return None
        if ids_P.tobytes() != self._ids:
            self._prefix = None  # before the next one, so that not both take memory
            self._prefix = self._backend.read(ids_P)
            self._ids = ids_P.tobytes()
        return self._prefix

    def _one_token(self, batch: Batch, prefix: Prefix) -> list[list[Scored]]:
        ids_BT, lengths_B = padded([row.ids[batch.shared :] for row in batch.rows])
        logits_BV = self._backend.next_logits(ids_BT, lengths_B, prefix).astype(np.float64)
        total_B = log_sum_exp(logits_BV)
        best_B = logits_BV.argmax(axis=1)
        return [
            [(float(logits_BV[b, id] - total_B[b]), bool(best_B[b] == id)) for id in row.last]
            for b, row in enumerate(batch.rows)
        ]

    def _several(self, batch: Batch, prefix: Prefix) -> list[list[Scored]]:
        # The pass wants each continuation in full: a row with several last tokens is unfolded.
        rows = batch.rows
        full = [np.append(row.ids, np.int32(x))[batch.shared :] for row in rows for x in row.last]
        starts = [row.context - 1 - batch.shared for row in rows for _ in row.last]
        logprobs: list[Scored] = []
        for begin in range(0, len(full), len(rows)):
            part = full[begin : begin + len(rows)]
            ids_BT, lengths_B = padded(part)
            logprob_BT, greedy_BT = self._backend.follow(ids_BT, lengths_B, prefix)
            for b, ids in enumerate(part):
                span = slice(starts[begin + b], len(ids) - 1)
                total = float(logprob_BT[b, span].sum(dtype=np.float64))
                logprobs.append((total, bool(greedy_BT[b, span].all())))
        answers = iter(logprobs)
        return [[next(answers) for _ in row.last] for row in rows]


def padded(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows as int32 [B, T], padded on the right with 0, and their lengths int64 [B]."""
    lengths_B = np.array([len(row) for row in rows], np.int64)
    ids_BT = np.zeros((len(rows), int(lengths_B.max())), np.int32)
    for b, row in enumerate(rows):
        ids_BT[b, : len(row)] = row
    return ids_BT, lengths_B
