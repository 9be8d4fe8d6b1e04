"""Scoring requests as rows of tokens: equal work shared, rows of like length batched together.

A request asks how likely a continuation is after a context. Requests whose context and all but the
last token of whose continuation are equal need the same forward pass, so they share one row: four
answer letters cost one row, not four.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from stages.evaluate.backends import Backend, log_sum_exp

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


def batches(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    """Rows in batches of `size`, the longest first: what does not fit into memory shows at once.

    Rows that ask about one token and rows that ask about several are kept apart, since they take
    different passes. The batches depend on the rows alone.
    """
    for several in (False, True):
        kind = [row for row in rows if (len(row.ids) > row.context) == several]
        kind.sort(key=lambda row: (-len(row.ids), row.requests[0]))
        for begin in range(0, len(kind), size):
            yield kind[begin : begin + size]


def score(backend: Backend, batch: Sequence[Row]) -> list[list[Scored]]:
    """For each row of one batch, the answer to each of its requests."""
    if len(batch[0].ids) == batch[0].context:
        return _score_one_token(backend, batch)
    return _score_several(backend, batch)


def _score_one_token(backend: Backend, batch: Sequence[Row]) -> list[list[Scored]]:
    ids_BT, lengths_B = padded([row.ids for row in batch])
    logits_BV = backend.next_logits(ids_BT, lengths_B).astype(np.float64)
    total_B = log_sum_exp(logits_BV)
    best_B = logits_BV.argmax(axis=1)
    return [
        [(float(logits_BV[b, id] - total_B[b]), bool(best_B[b] == id)) for id in row.last]
        for b, row in enumerate(batch)
    ]


def _score_several(backend: Backend, batch: Sequence[Row]) -> list[list[Scored]]:
    # The pass wants each continuation in full, so a row with several last tokens is unfolded.
    full = [np.append(row.ids, np.int32(last)) for row in batch for last in row.last]
    starts = [row.context - 1 for row in batch for _ in row.last]
    logprobs: list[Scored] = []
    for begin in range(0, len(full), len(batch)):
        part = full[begin : begin + len(batch)]
        ids_BT, lengths_B = padded(part)
        logprob_BT, greedy_BT = backend.follow(ids_BT, lengths_B)
        for b, ids in enumerate(part):
            span = slice(starts[begin + b], len(ids) - 1)
            total = float(logprob_BT[b, span].sum(dtype=np.float64))
            logprobs.append((total, bool(greedy_BT[b, span].all())))
    answers = iter(logprobs)
    return [[next(answers) for _ in row.last] for row in batch]


def padded(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows as int32 [B, T], padded on the right with 0, and their lengths int64 [B]."""
    lengths_B = np.array([len(row) for row in rows], np.int64)
    ids_BT = np.zeros((len(rows), int(lengths_B.max())), np.int32)
    for b, row in enumerate(rows):
        ids_BT[b, : len(row)] = row
    return ids_BT, lengths_B
