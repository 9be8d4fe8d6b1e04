"""How far two engines' logits are apart, in the unit in which MindCycle promises agreement."""

from dataclasses import dataclass

import numpy as np

PROMISED = 1e-5
"""Largest error allowed between engines at fp32, for logits of order 1."""


ALLOWED = {"fp32": PROMISED, "fp16": 2e-2, "bf16": 1.5e-1}
"""Largest error by the type in which weights are stored: below fp32 the rounding of the weights
dominates, about 2^-11 and 2^-8 of each, and grows with depth; a wrong layout gives errors of 1."""


@dataclass(frozen=True)
class Difference:
    """What `compare` found."""

    max_abs: float
    """Largest absolute difference; NaN if a compared value is not finite."""
    scale: float
    """Root mean square of the reference, at least 1: how large "order 1" is here."""

    @property
    def scaled(self) -> float:
        """`max_abs / scale`, the figure that is held against the threshold."""
        return self.max_abs / self.scale

    def within(self, threshold: float) -> bool:
        """Whether the error is small enough. Never true for NaN."""
        return self.scaled <= threshold


def compare(
    reference_BTV: np.ndarray, actual_BTV: np.ndarray, rows_BT: np.ndarray | None = None
) -> Difference:
    """Compare two arrays of logits on the rows that count (all unless given).

    Raises ValueError if the shapes differ.
    """
    if reference_BTV.shape != actual_BTV.shape:
        raise ValueError(f"shapes differ: {reference_BTV.shape} and {actual_BTV.shape}")
    rows_BT = np.ones(reference_BTV.shape[:-1], bool) if rows_BT is None else rows_BT
    reference = reference_BTV[rows_BT].astype(np.float64)
    actual = actual_BTV[rows_BT].astype(np.float64)
    if reference.size == 0:
        return Difference(0.0, 1.0)
    return Difference(
        max_abs=float(np.max(np.abs(reference - actual))),
        scale=max(1.0, float(np.sqrt(np.mean(reference * reference)))),
    )
