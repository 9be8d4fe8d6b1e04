"""Reference logits for many small cases from an engine that compiles a graph per shape.

The rows of several cases are stacked and padded to two lengths only. What is added stands to the
right and is masked, so the rows of a causal model do not change.
"""

from collections.abc import Callable, Iterator

import numpy as np

from stages.export.cases import Case

Reference = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(ids [B, T], mask [B, T] bool, positions [B, T]) -> logits [B, T, V]; masked rows are free."""

SHORT = 32
"""Tokens; cases up to this length share the smaller shape."""
ROWS = (16, 4, 1)
"""Rows of one call; the largest whose logits fit into BYTES."""
BYTES = 256 << 20


def with_references(
    cases: list[Case], reference: Reference, vocab_size: int
) -> Iterator[tuple[Case, np.ndarray]]:
    """Every case with its reference logits [B, T, V], short ones first."""
    longest = max(case.ids_BT.shape[1] for case in cases)
    for low, high in ((0, SHORT), (SHORT, longest)):
        group = [case for case in cases if low < case.ids_BT.shape[1] <= high]
        length = min(high, longest)
        rows = next((rows for rows in ROWS if rows * length * vocab_size * 4 <= BYTES), ROWS[-1])
        for pack in _packs(group, rows):
            stacked = [
                np.concatenate([_padded(getattr(case, name), length) for case in pack])
                for name in ("ids_BT", "mask_BT", "positions_BT")
            ]
            calls = [
                reference(*(array[i : i + rows] for array in stacked))
                for i in range(0, len(stacked[0]), rows)
            ]
            logits_RTV = np.concatenate(calls)
            begin = 0
            for case in pack:
                batch, total = case.ids_BT.shape
                yield case, logits_RTV[begin : begin + batch, :total]
                begin += batch


def _packs(cases: list[Case], rows: int) -> Iterator[list[Case]]:
    """Consecutive cases with about `rows` rows together; at least one case each."""
    pack: list[Case] = []
    for case in cases:
        if pack and sum(len(each.ids_BT) for each in [*pack, case]) > rows:
            yield pack
            pack = []
        pack.append(case)
    if pack:
        yield pack


def _padded(array_BT: np.ndarray, length: int) -> np.ndarray:
    return np.pad(array_BT, ((0, 0), (0, length - array_BT.shape[1])))
