"""Accuracies over items, subjects and tasks, with standard errors.

With items i in subjects s, x_i = 1 where the answer is right:

- accuracy of n independent items:  p = mean(x),  se^2 = p (1 - p) / (n - 1)
  (the sample deviation over the square root of n, as lm-eval has it);
- micro: that over all items of the task;
- macro: the mean of the k subjects' accuracies,  se^2 = sum_s se_s^2 / k^2;
- where items form clusters g that stand or fall together, residuals are summed within a cluster
  before they are squared (the cluster-robust error), with weights w_i = 1/n for micro and
  w_i = 1/(k n_s) for macro:  se^2 = G / (G - 1) * sum_g (sum_{i in g} w_i (x_i - mean))^2,
  where mean is the task's for micro and the subject's for macro, and G counts clusters. An item
  without a cluster is one of its own. If no cluster has two items, they are independent, as above.

An error is None where it is undefined: one item, one cluster, or a subject of one item for macro.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.eval_report import Bin, Calibration, Item, value_of

BINS = 10


@dataclass(frozen=True)
class Answered:
    """What counts of an item here."""

    subject: str
    correct: bool
    cluster: str | None = None


def accuracy(items: Sequence[Answered]) -> float:
    """Share of right answers."""
    return sum(item.correct for item in items) / len(items)


def standard_error(items: Sequence[Answered]) -> float | None:
    """Standard error of `accuracy(items)`."""
    if _dependent(items):
        mean, weight = accuracy(items), 1 / len(items)
        return _clustered(items, [weight * (item.correct - mean) for item in items])
    if len(items) < 2:
        return None
    p = accuracy(items)
    return math.sqrt(p * (1 - p) / (len(items) - 1))


def macro(items: Sequence[Answered]) -> tuple[float, float | None]:
    """Mean of the subjects' accuracies, and its standard error."""
    subjects: dict[str, list[Answered]] = {}
    for item in items:
        subjects.setdefault(item.subject, []).append(item)
    means = {name: accuracy(rows) for name, rows in subjects.items()}
    mean = math.fsum(means.values()) / len(means)
    if any(len(rows) < 2 for rows in subjects.values()):
        return mean, None
    if _dependent(items):
        residuals = [
            (item.correct - means[item.subject]) / (len(means) * len(subjects[item.subject]))
            for item in items
        ]
        return mean, _clustered(items, residuals)
    squares = [(standard_error(rows) or 0.0) ** 2 for rows in subjects.values()]
    return mean, math.sqrt(math.fsum(squares)) / len(means)


def weighted(items: Sequence[Item]) -> tuple[float, float | None]:
    """Mean of the items' values by their weights w_i, and its standard error.

    se^2 = n / (n - 1) * sum_i (w_i (x_i - mean))^2 / (sum_i w_i)^2, the ratio estimator's (Cochran
    1977, Sampling Techniques, section 6.3); without weights it is that of `standard_error`.
    """
    values = np.array([value_of(item) for item in items], np.float64)
    weights = np.array([1.0 if item.weight is None else item.weight for item in items])
    mean = float((weights * values).sum() / weights.sum())
    if len(items) < 2:
        return mean, None
    square = float(np.square(weights * (values - mean)).sum()) / float(weights.sum()) ** 2
    return mean, math.sqrt(square * len(items) / (len(items) - 1))


def calibration(items: Sequence[Item]) -> Calibration | None:
    """How far the choices' probabilities can be believed; None without choices."""
    if not items or any(len(item.loglikelihoods) < 2 for item in items):
        return None
    sure, right, brier = [], [], 0.0
    for item in items:
        logits = np.array(item.loglikelihoods, np.float64)
        p = np.exp(logits - logits.max())
        p /= p.sum()
        sure.append(float(p[item.choice]))
        right.append(item.correct)
        brier += float(np.square(p - np.eye(len(p))[item.gold]).sum())
    confidence, correct = np.array(sure), np.array(right, np.float64)
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins = [
        Bin(
            n=int((place == k).sum()),
            confidence=float(confidence[place == k].mean()),
            acc=float(correct[place == k].mean()),
        )
        for k in sorted(set(place.tolist()))
    ]
    error = math.fsum(one.n * abs(one.confidence - one.acc) for one in bins) / len(items)
    return Calibration(ece=error, brier=brier / len(items), bins=bins)


def cluster_count(items: Sequence[Answered]) -> int | None:
    """Number of clusters; None if no item has one."""
    if all(item.cluster is None for item in items):
        return None
    return len(set(_keys(items)))


def _dependent(items: Sequence[Answered]) -> bool:
    return len(set(_keys(items))) < len(items)


def _clustered(items: Sequence[Answered], residuals: Sequence[float]) -> float | None:
    sums: dict[object, float] = {}
    for key, residual in zip(_keys(items), residuals, strict=True):
        sums[key] = sums.get(key, 0.0) + residual
    if len(sums) < 2:
        return None
    square = math.fsum(value * value for value in sums.values())
    return math.sqrt(square * len(sums) / (len(sums) - 1))


def _keys(items: Sequence[Answered]) -> list[object]:
    """One key a cluster; a lone item gets a key of its own."""
    return [index if item.cluster is None else item.cluster for index, item in enumerate(items)]
