"""The gate's statistics against hand-computed values, tables, a bootstrap and simulations."""

import math

import numpy as np
import pytest

from stages.gate.statistics import (
    bootstrap_interval,
    clustered_standard_error,
    difference_bound,
    difference_p,
    holm,
    mcnemar_exact,
    score_bound,
    t_quantile,
    t_tail,
)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        (0.5, 7, 0.0),
        (0.95, 1, 6.3138),
        (0.95, 5, 2.0150),
        (0.99, 2, 6.9646),
        (0.995, 10, 3.1693),
        (0.95, 120, 1.6577),
        (0.975, 14041, 1.9601),
    ],
)
def test_t_quantiles_as_in_the_tables(probability: float, freedom: int, value: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(value, abs=6e-5)


def test_standard_error_by_hand() -> None:
    # Clusters {1, 1}, {0, 0}, {1, 0}: mean 1/2, sums of deviations 1, -1, 0.
    values = np.array([1.0, 1, 0, 0, 1, 0])
    by_hand = math.sqrt(3 / 2 * (1 + 1 + 0)) / 6
    assert clustered_standard_error(values, [0, 0, 1, 1, 2, 2]) == pytest.approx(by_hand)
    alone = clustered_standard_error(values, range(6))
    assert alone == pytest.approx(np.std(values, ddof=1) / math.sqrt(6))


def test_repeating_every_item_adds_no_certainty() -> None:
    values = np.random.default_rng(0).integers(0, 2, 50).astype(float)
    once = clustered_standard_error(values, range(50))
    fourfold = clustered_standard_error(np.repeat(values, 4), list(np.repeat(range(50), 4)))
    assert fourfold == pytest.approx(once)


def test_one_cluster_has_no_standard_error() -> None:
    with pytest.raises(ValueError, match="two clusters"):
        clustered_standard_error(np.array([1.0, 0.0]), [0, 0])


def test_standard_error_agrees_with_a_bootstrap_over_clusters() -> None:
    rng = np.random.default_rng(1)
    cluster = np.repeat(np.arange(120), 3)
    skill = rng.beta(0.4, 0.4, 120)  # items of a cluster agree more than chance
    values = (rng.random(360) < skill[cluster]).astype(float)
    by_cluster = values.reshape(120, 3).sum(1)
    draws = by_cluster[rng.integers(0, 120, (20_000, 120))].sum(1) / 360
    error = clustered_standard_error(values, cluster.tolist())
    assert error == pytest.approx(draws.std(), rel=0.03)
    assert error > 1.2 * clustered_standard_error(values, range(360))


def test_wilson_bound_by_hand() -> None:
    # 81 of 100 with z = t(0.95, 99); the textbook formula with n = 99, since SE divides by N - 1.
    values = np.array([1.0] * 81 + [0.0] * 19)
    z, p, n = 1.660391, 0.81, 99
    by_hand = (p + z * z / (2 * n) - z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (
        1 + z * z / n
    )
    estimate = score_bound(values, range(100), 0.95)
    assert estimate.bound == pytest.approx(by_hand, abs=1e-6)
    assert estimate.bound < p - z * 0.03  # pulled towards the middle


def test_all_right_is_no_proof_of_perfection() -> None:
    few, many = (score_bound(np.ones(n), range(n), 0.95).bound for n in (10, 1000))
    assert 0.7 < few < 0.8  # rule of three: 1 - 3 / 10
    assert 0.996 < many < 0.998
    doubled = score_bound(np.ones(20), [i // 2 for i in range(20)], 0.95)
    assert doubled.bound == pytest.approx(few)


def test_difference_by_hand() -> None:
    # 10 wins, 4 losses, 26 ties: mean 0.15, sum of squares 14.
    d = np.array([1.0] * 10 + [-1.0] * 4 + [0.0] * 26)
    error = math.sqrt((14 - 40 * 0.15**2) / 39 / 40)
    estimate = difference_bound(d, range(40), 0.95)
    assert (estimate.mean, estimate.items, estimate.clusters) == (pytest.approx(0.15), 40, 40)
    assert estimate.standard_error == pytest.approx(error)
    assert estimate.bound == pytest.approx(0.15 - 1.684875 * error, abs=1e-6)


def test_agreement_on_few_items_is_no_proof() -> None:
    nothing = difference_bound(np.zeros(5), range(5), 0.95)
    assert nothing.standard_error == pytest.approx(2 / 5)
    assert nothing.bound < -0.5
    assert difference_bound(np.zeros(1000), range(1000), 0.95).bound > -0.004


def test_mcnemar_by_hand() -> None:
    assert mcnemar_exact(0, 0) == 1
    assert mcnemar_exact(5, 5) == 1
    assert mcnemar_exact(8, 2) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert mcnemar_exact(2, 8) == mcnemar_exact(8, 2)
    assert mcnemar_exact(0, 2000) == pytest.approx(0, abs=1e-300)


@pytest.mark.parametrize(("facts", "per_fact"), [(60, 1), (60, 2), (240, 2)])
def test_equal_models_are_called_better_no_more_often_than_stated(
    facts: int, per_fact: int
) -> None:
    """4,000 pairs of equal skill at confidence 0.95: approvals 5 %, within 3 standard errors."""
    approvals = _approvals(facts, per_fact, gain=0.0, above=0.0, trials=4000)
    assert approvals < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


def test_ignoring_clusters_would_approve_too_often() -> None:
    """The same simulation with clusters thrown away breaks the promise, so it can see it broken."""
    approvals = _approvals(60, 4, gain=0.0, above=0.0, trials=2000, clustered=False)
    assert approvals > 0.10


def test_a_model_worse_by_the_margin_seldom_passes() -> None:
    approvals = _approvals(240, 2, gain=-0.05, above=-0.04, trials=3000)  # 0.05 * (2 * 0.9 - 1)
    assert approvals < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 3000)


def test_a_true_gain_is_found() -> None:
    assert _approvals(240, 2, gain=0.15, above=0.0, trials=500) > 0.9


def test_a_floor_exactly_met_is_passed_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(5)
    right = (rng.random((3000, 100)) < 0.9).astype(float)
    passed = sum(score_bound(row, range(100), 0.95).bound >= 0.9 for row in right)
    assert passed / 3000 < 0.07  # mean - t * SE would pass 11 to 12 %


def _approvals(
    facts: int, per_fact: int, gain: float, above: float, trials: int, clustered: bool = True
) -> float:
    """Share of simulated pairs of models for which the difference's bound exceeds `above`.

    A model knows a fact or not; each of the fact's items follows that with probability 0.9.
    """
    rng = np.random.default_rng(facts + per_fact)

    def answers(skill: float) -> np.ndarray:
        knows = rng.random((trials, facts, 1)) < skill
        follows = rng.random((trials, facts, per_fact)) < 0.9
        return (knows == follows).reshape(trials, -1).astype(float)

    items = facts * per_fact
    cluster = np.arange(items) // per_fact if clustered else np.arange(items)
    differences = answers(0.6 + gain) - answers(0.6)
    bounds = [difference_bound(row, cluster, 0.95).bound for row in differences]
    return sum(bound > above for bound in bounds) / trials


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_p_value_is_the_confidence_at_which_the_bound_is_reached() -> None:
    difference = np.random.default_rng(2).choice([1.0, 0.0, -1.0], 200, p=[0.2, 0.7, 0.1])
    p = difference_p(difference, range(200), 0.03)
    assert 0 < p < 0.5
    assert difference_bound(difference, range(200), 1 - p).bound == pytest.approx(0.03)
    assert difference_p(-difference, range(200), -0.03) == pytest.approx(1 - p)


def test_tails_are_symmetric() -> None:
    assert t_tail(0.0, 9) == 0.5
    assert t_tail(-1.3, 9) == pytest.approx(1 - t_tail(1.3, 9))


def test_bootstrap_interval_agrees_with_the_standard_error_and_sees_clusters() -> None:
    difference = np.random.default_rng(3).choice([1.0, 0.0, -1.0], 400, p=[0.2, 0.7, 0.1])
    error = clustered_standard_error(difference, range(400))
    low, high = bootstrap_interval(difference, range(400))
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.05)
    assert (low + high) / 2 == pytest.approx(difference.mean(), abs=error / 10)
    fourfold = np.repeat(difference, 4), list(np.repeat(range(400), 4))
    assert bootstrap_interval(*fourfold) == pytest.approx((low, high), abs=error / 10)
    assert bootstrap_interval(difference, range(400)) == (low, high)
