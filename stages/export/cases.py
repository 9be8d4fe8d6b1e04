"""What the proof runs: batches, lengths, paddings, holes and pasts, most of them never exported at.

No shape is special to our graph; the point is that a graph with a baked length, a wrong mask or
ignored positions cannot pass them all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from artifacts.onnx_bundle import positions_of

BATCHES = (1, 2, 5)


@dataclass(frozen=True)
class Case:
    """One run of the graph: T = P + S tokens, of which the first P are already cached."""

    kind: str
    past: int
    """P, in tokens. The past itself comes from the graph, run on those P tokens."""
    ids_BT: np.ndarray
    mask_BT: np.ndarray
    positions_BT: np.ndarray
    steps: int = 0
    """How many of the S tokens go in at once; 0 is all."""

    @property
    def name(self) -> str:
        """Such as `left pad 2x(5+3)`: batch x (past + new)."""
        batch, total = self.ids_BT.shape
        return f"{self.kind} {batch}x({self.past}+{total - self.past})"


def sweep(vocab_size: int, longest: int, seed: int) -> list[Case]:
    """All cases up to `longest` tokens (at least 1), with ids drawn from `seed`."""
    rng = np.random.default_rng(seed)

    def case(
        kind: str,
        mask_BT: np.ndarray,
        past: int = 0,
        positions_BT: np.ndarray | None = None,
        steps: int = 0,
    ) -> Case:
        ids_BT = rng.integers(0, vocab_size, mask_BT.shape)
        positions_BT = positions_of(mask_BT) if positions_BT is None else positions_BT
        return Case(kind, past, ids_BT, mask_BT, positions_BT, steps)

    lengths = _up_to(longest, 1, 2, 3, 7, 16, longest // 2 + 1, longest - 1, longest)
    cases = [case("whole", _full(batch, t)) for batch in BATCHES for t in lengths]
    for batch, total in _sizes(longest):
        cases.append(case("left pad", _left(batch, total)))
        cases.append(case("right pad", _left(batch, total)[:, ::-1].copy()))
        cases.append(case("holes", _holes(batch, total)))
        cases.append(case("masked row", _masked_row(batch, total)))
    for batch in BATCHES:
        for past, new in _pasts(longest):
            cases.append(case("past", _full(batch, past + new), past))
            if batch > 1:
                cases.append(case("left pad, past", _left(batch, past + new), past))
                cases.append(case("holes, past", _holes(batch, past + new), past))
    few = min(longest, 9)
    cases.append(case("one by one", _full(2, few), 0, steps=1))
    cases.append(case("left pad, one by one", _left(2, few), 0, steps=1))
    if few > 2:
        # Any growing positions are allowed. A graph that counts for itself is found out here.
        spread = np.tile(np.arange((few + 1) // 2) * 2, (2, 1))
        cases.append(case("spread positions", np.ones(spread.shape, bool), 0, spread))
    return cases


def _up_to(longest: int, *lengths: int) -> list[int]:
    return sorted({length for length in lengths if 1 <= length <= longest})


def _sizes(longest: int) -> Iterator[tuple[int, int]]:
    for batch in BATCHES[1:]:
        for total in _up_to(longest, 5, 12, longest):
            if total > 1:
                yield batch, total


def _pasts(longest: int) -> Iterator[tuple[int, int]]:
    for past in _up_to(longest - 1, 1, 5, longest // 2, longest - 4, longest - 1):
        for new in _up_to(longest - past, 1, 4):
            yield past, new


def _full(batch: int, total: int) -> np.ndarray:
    return np.ones((batch, total), bool)


def _left(batch: int, total: int) -> np.ndarray:
    """Row 0 has the most padding, the last row none."""
    pads = np.linspace(total - 1, 0, batch).astype(int)
    return np.arange(total) >= pads[:, None]


def _holes(batch: int, total: int) -> np.ndarray:
    """Every third token is missing, at another place in each row; the last token counts."""
    mask = (np.arange(total) + np.arange(batch)[:, None]) % 3 != 1
    mask[:, -1] = True
    return mask


def _masked_row(batch: int, total: int) -> np.ndarray:
    """Row 0 has no token that counts: its logits mean nothing but must be finite."""
    mask = np.ones((batch, total), bool)
    mask[0] = False
    return mask
