"""How alike two engines' predictions are, beyond the largest error of a logit."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Likeness:
    """Of one case, over the token rows that count."""

    max_rel: float
    """Largest difference of a logit, relative to it or to the logits' root mean square."""
    kl: float
    """Kullback-Leibler divergence of the next-token distributions, nats, mean over rows."""
    max_kl: float
    """The same, largest row."""
    top1: float
    """Share of rows with the same most likely token."""


def likeness(reference_RV: np.ndarray, actual_RV: np.ndarray) -> Likeness | None:
    """Compare rows of logits; None if there is no row, or a value is not finite."""
    reference, actual = reference_RV.astype(np.float64), actual_RV.astype(np.float64)
    if not reference.size or not np.isfinite(actual).all():
        return None
    scale = np.sqrt(np.mean(reference * reference))
    logs, other = _log_softmax(reference), _log_softmax(actual)
    kl_R = np.maximum((np.exp(logs) * (logs - other)).sum(axis=-1), 0)
    return Likeness(
        max_rel=float(np.max(np.abs(actual - reference) / np.maximum(np.abs(reference), scale))),
        kl=float(kl_R.mean()),
        max_kl=float(kl_R.max()),
        top1=float((reference.argmax(axis=-1) == actual.argmax(axis=-1)).mean()),
    )


def _log_softmax(logits_RV: np.ndarray) -> np.ndarray:
    shifted = logits_RV - logits_RV.max(axis=-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found
