"""Accuracies and their errors, against hand-computed values and lm-eval's own formulas."""

import math

import numpy as np
import pytest
from lm_eval.api.metrics import mean_stderr, unweighted_mean_stderr

from artifacts.eval_report import Item
from stages.evaluate import scores
from stages.evaluate.scores import Answered, accuracy, cluster_count, macro, standard_error


def answered(bits: str, subject: str = "s", clusters: str | None = None) -> list[Answered]:
    return [
        Answered(subject, bit == "1", clusters[i] if clusters else None)
        for i, bit in enumerate(bits)
    ]


def test_micro_by_hand() -> None:
    items = answered("1000")
    assert accuracy(items) == 0.25
    assert standard_error(items) == pytest.approx(0.25)  # sqrt(0.25 * 0.75 / 3)


@pytest.mark.parametrize("bits", ["10", "1101", "0000", "110100101"])
def test_micro_is_lm_evals(bits: str) -> None:
    values = [float(bit) for bit in bits]
    assert standard_error(answered(bits)) == pytest.approx(mean_stderr(values))


def test_macro_is_lm_evals_for_unequal_subjects() -> None:
    items = answered("10", "a") + answered("1110", "b")
    mean, error = macro(items)
    assert mean == pytest.approx((0.5 + 0.75) / 2)
    expected = unweighted_mean_stderr([mean_stderr([1, 0]), mean_stderr([1, 1, 1, 0])])
    assert error == pytest.approx(expected)
    assert accuracy(items) != pytest.approx(mean)


def test_clusters_by_hand() -> None:
    # Two facts asked twice each: sums of residuals are 2 * 0.5 and 2 * -0.5, weights 1/4.
    items = answered("1100", clusters="aabb")
    assert standard_error(items) == pytest.approx(math.sqrt(2 * (2 / 8) ** 2 * 2 / 1))
    assert cluster_count(items) == 2


def test_items_doubled_in_clusters_have_the_error_of_the_facts() -> None:
    bits = "1101000110"
    doubled = "".join(bit * 2 for bit in bits)
    names = "".join(letter * 2 for letter in "abcdefghij")
    assert standard_error(answered(doubled, clusters=names)) == pytest.approx(
        standard_error(answered(bits))
    )
    assert macro(answered(doubled, clusters=names))[1] == pytest.approx(macro(answered(bits))[1])


def test_clusters_of_one_change_nothing() -> None:
    items = answered("1101", "a", "wxyz") + answered("01", "b", "uv")
    plain = answered("1101", "a") + answered("01", "b")
    assert standard_error(items) == standard_error(plain)
    assert macro(items) == macro(plain)
    assert (cluster_count(items), cluster_count(plain)) == (6, None)


def test_macro_errors_of_clusters_across_subjects() -> None:
    # The same fact in both subjects: the errors add up, they do not cancel.
    items = answered("10", "a", "xy") + answered("10", "b", "xy")
    assert macro(items)[1] == pytest.approx(0.5)
    assert macro(answered("10", "a") + answered("10", "b"))[1] == pytest.approx(math.sqrt(0.125))


def test_undefined_errors_are_none() -> None:
    assert standard_error(answered("1")) is None
    assert standard_error(answered("11", clusters="aa")) is None
    assert macro(answered("1", "a") + answered("10", "b")) == (0.75, None)


def test_the_error_covers_the_spread_of_simulated_scores() -> None:
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(400):
        facts = rng.random(30) < 0.4
        bits = "".join("1" if fact else "0" for fact in facts for _ in range(3))
        names = "".join(chr(200 + i) * 3 for i in range(30))
        items = answered(bits, clusters=names)
        found.append(accuracy(items))
        errors.append(standard_error(items) or 0.0)
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.1)


def item(values: list[float], gold: int) -> Item:
    choice = values.index(max(values))
    return Item(
        task="t", subject="s", id="i", gold=gold, choice=choice, correct=choice == gold,
        loglikelihoods=values,
    )  # fmt: skip


def test_calibration_by_hand() -> None:
    sure, unsure = [math.log(0.9), *[math.log(0.1 / 3)] * 3], [0.0] * 4
    found = scores.calibration([item(sure, 0), item(sure, 1), item(unsure, 0), item(unsure, 3)])
    assert found is not None
    assert [(one.n, one.acc) for one in found.bins] == [(2, 0.5), (2, 0.5)]
    assert found.ece == pytest.approx((abs(0.9 - 0.5) + abs(0.25 - 0.5)) / 2)
    near, far = 0.1**2 + 3 * (0.1 / 3) ** 2, 0.9**2 + (1 - 0.1 / 3) ** 2 + 2 * (0.1 / 3) ** 2
    assert found.brier == pytest.approx((near + far + 2 * 0.75) / 4)
    assert scores.calibration([]) is None


def test_weighted_means_are_ratios_and_have_the_ordinary_error_without_weights() -> None:
    values = [item([0.0, -1.0], gold) for gold in (0, 0, 0, 1)]
    answered = [scores.Answered("s", one.correct) for one in values]
    assert scores.weighted(values) == pytest.approx((0.75, scores.standard_error(answered)))
    heavy = [
        one.model_copy(update={"score": x, "weight": w})
        for one, x, w in zip(values, (1.0, 2.0, 3.0, 4.0), (10.0, 10.0, 10.0, 70.0), strict=True)
    ]
    mean, error = scores.weighted(heavy)
    assert mean == pytest.approx(3.4)
    assert error == pytest.approx(math.sqrt(4 / 3 * (24**2 + 14**2 + 4**2 + 42**2)) / 100)
