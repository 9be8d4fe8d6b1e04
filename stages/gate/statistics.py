"""How sure a score or a difference is. Shares of items throughout; numpy and the standard library.

Items that test the same fact stand or fall together, so the independent observations are clusters.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A mean over items with its one-sided lower confidence bound."""

    mean: float
    standard_error: float
    bound: float
    items: int
    clusters: int


def clustered_standard_error(values_N: np.ndarray, cluster_N: Sequence[int]) -> float:
    """Standard error of the mean of `values_N`, whose items are correlated within clusters.

    SE^2 = G / (G - 1) * sum over clusters g of (sum over i in g of (x_i - mean))^2 / N^2

    with N items in G clusters: Liang & Zeger 1986 (Biometrika 73:13-22) for a mean, as given for
    evaluations by Miller 2024 (arXiv:2411.00640, section 2.2), with the small-sample factor of
    Cameron & Miller 2015 (J. Human Resources 50:317-372). With one item a cluster it is the
    ordinary s / sqrt(N). Raises ValueError for fewer than two clusters.
    """
    sums_G = np.bincount(np.asarray(cluster_N), weights=values_N - values_N.mean())
    groups = len(sums_G)
    if groups < 2:
        raise ValueError("a standard error needs at least two clusters")
    return math.sqrt(groups / (groups - 1) * float(np.square(sums_G).sum())) / len(values_N)


def score_bound(correct_N: np.ndarray, cluster_N: Sequence[int], confidence: float) -> Estimate:
    """A share of right items, with Wilson's lower bound (Wilson 1927, JASA 22:209-212).

    Near 0 and 1 the plain mean - t * SE approves far too often (11 % instead of 5 % for a floor of
    0.9 on 100 items); Wilson's bound inverts the score test and does not. Clusters enter through
    the effective number of items, p (1 - p) / SE^2 but not above N, and t with G - 1 degrees of
    freedom stands for z (Korn & Graubard 1998, Survey Methodology 24:193-201).
    """
    mean, items, clusters = float(correct_N.mean()), len(correct_N), _count(cluster_N)
    error = clustered_standard_error(correct_N, cluster_N)
    effective = min(items, mean * (1 - mean) / error**2) if error > 0 else float(clusters)
    t = t_quantile(confidence, clusters - 1)
    center = mean + t * t / (2 * effective)
    spread = t * math.sqrt(mean * (1 - mean) / effective + (t / (2 * effective)) ** 2)
    bound = max(0.0, (center - spread) / (1 + t * t / effective))
    return Estimate(mean, error, bound, items, clusters)


def difference_bound(
    difference_N: np.ndarray, cluster_N: Sequence[int], confidence: float
) -> Estimate:
    """A mean difference of paired items (each -1, 0 or 1), with the lower bound mean - t * SE.

    t has G - 1 degrees of freedom. SE is the clustered one, but never below 2 / G: when (almost) no
    pair differs, the normal approximation has nothing to stand on and would call five agreeing
    items proof. Zero events in G observations leave rates up to 3 / G open at 95 % (the rule of
    three, Hanley & Lippman-Hand 1983, JAMA 249:1743-1745); 1.645 * 2 / G covers that.
    """
    clusters = _count(cluster_N)
    error = max(clustered_standard_error(difference_N, cluster_N), 2 / clusters)
    mean = float(difference_N.mean())
    bound = max(-1.0, mean - t_quantile(confidence, clusters - 1) * error)
    return Estimate(mean, error, bound, len(difference_N), clusters)


def mcnemar_exact(wins: int, losses: int) -> float:
    """Two-sided exact p-value that wins and losses are equally likely (McNemar 1947, binomial).

    p = min(1, 2 * P(X <= min(wins, losses))) with X ~ Binomial(wins + losses, 1/2). Assumes
    independent items, so beside clusters it is a description, not the decision.
    """
    trials, fewer = wins + losses, min(wins, losses)
    if trials == 0:
        return 1.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * sum(math.exp(value - trials * math.log(2)) for value in logs))


def difference_p(difference_N: np.ndarray, cluster_N: Sequence[int], above: float) -> float:
    """One-sided p-value that the mean difference is no more than `above`: the confidence at which
    `difference_bound` would just reach it."""
    estimate = difference_bound(difference_N, cluster_N, 0.5)
    t = (estimate.mean - above) / estimate.standard_error
    return t_tail(t, estimate.clusters - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, so that the chance of one false finding among them stays
    at the level they are compared with, however they depend on each other.

    Sorted, p_(i) becomes max over j <= i of min(1, (k - j + 1) p_(j)) (Holm 1979, Scandinavian
    Journal of Statistics 6:65-70).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted


def bootstrap_interval(
    difference_N: np.ndarray,
    cluster_N: Sequence[int],
    confidence: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Two-sided percentile interval of a mean difference, clusters drawn with replacement.

    Efron & Tibshirani 1993, chapter 13; the mean of a draw is its sum over its number of items.
    """
    sums_G = np.bincount(np.asarray(cluster_N), weights=difference_N)
    sizes_G = np.bincount(np.asarray(cluster_N))
    rng, count = np.random.default_rng(seed), len(sums_G)
    means = []
    portion = max(1, 4_000_000 // count)  # 32 MB at a time
    for begin in range(0, draws, portion):
        picked = rng.integers(0, count, (min(portion, draws - begin), count))
        means.append(sums_G[picked].sum(1) / sizes_G[picked].sum(1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t for a probability from 0.5 up, by bisection of `t_tail`."""
    low, high = 0.0, 1.0
    while 1 - t_tail(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        below = 1 - t_tail(middle, freedom) < probability
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def t_tail(t: float, freedom: int) -> float:
    """Probability that Student's t lies above `t`.

    With t = sqrt(f) tan(a) the density is proportional to cos(a)^(f - 1): smooth, so that 64 Gauss
    points are exact to rounding (checked against published tables).
    """
    nodes, weights, scale = _density(freedom)
    angle = math.atan(t / math.sqrt(freedom))
    heights = np.cos((nodes + 1) * angle / 2) ** (freedom - 1)
    return 0.5 - scale * angle / 2 * float(weights @ heights)


@functools.cache
def _density(freedom: int) -> tuple[np.ndarray, np.ndarray, float]:
    nodes, weights = np.polynomial.legendre.leggauss(64)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return nodes, weights, scale


def _count(cluster_N: Sequence[int]) -> int:
    return int(np.max(cluster_N)) + 1
