"""One rule applied to the reports: the numbers, and whether they pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artifacts.decision import RuleResult
from artifacts.eval_report import EvalReport, Item, read_items, read_report, value_of
from stages.gate.bundle_config import NoLoss
from stages.gate.config import Floor, GainOnAny, GainOverBase, NoRegression
from stages.gate.statistics import (
    Estimate,
    clustered_standard_error,
    difference_bound,
    difference_p,
    holm,
    mcnemar_exact,
    score_bound,
)

SHOWN = 8
"""Items that are named; the rest is counted."""


@dataclass(frozen=True)
class Scores:
    """An eval-report with its items by task, in the same order in all reports."""

    report: EvalReport
    items: dict[str, list[Item]]


def read_scores(directory: Path) -> Scores:
    """Read an eval-report artifact. Raises BadInput."""
    items: dict[str, list[Item]] = {}
    for item in read_items(directory):
        items.setdefault(item.task, []).append(item)
    # The order of the items must not matter, and pairs are made by position from here on.
    ordered = {task: sorted(found, key=lambda item: item.id) for task, found in items.items()}
    return Scores(read_report(directory), ordered)


def judge(
    rule: Floor | GainOverBase | NoRegression | GainOnAny,
    candidate: Scores,
    base: Scores | None,
    baseline: Scores | None,
) -> RuleResult:
    """Apply one rule. The reports must be known to be alike and to hold the rule's task."""
    if isinstance(rule, Floor):
        return floor(rule, candidate)
    if isinstance(rule, GainOverBase):
        assert base is not None, "the run refuses this rule without a base"
        return _gain(rule, candidate, base)
    if isinstance(rule, GainOnAny):
        assert base is not None, "the run refuses this rule without a base"
        return _gain_on_any(rule, candidate, base)
    if baseline is None:
        return _no_baseline(rule, candidate)
    return _no_regression(rule, candidate, baseline)


def floor(rule: Floor, candidate: Scores) -> RuleResult:
    """The score's own lower bound against a value."""
    items = candidate.items[rule.task]
    score = score_bound(_correct(items), clusters_of(items), rule.confidence)
    passed = score.bound >= rule.at_least
    chance = candidate.report.tasks[rule.task].chance
    notes = []
    if rule.at_least <= chance:
        notes.append(f"the floor is no higher than guessing ({chance:.3f})")
    return RuleResult(
        rule="floor",
        task=rule.task,
        passed=passed,
        reason=f"the score is {score.mean:.3f} and at least {score.bound:.3f} with confidence "
        f"{rule.confidence}; {'reaches' if passed else 'misses'} {rule.at_least}",
        candidate=score.mean,
        standard_error=score.standard_error,
        bound=score.bound,
        threshold=rule.at_least,
        confidence=rule.confidence,
        items=score.items,
        clusters=score.clusters,
        notes=notes,
    )


def _gain(rule: GainOverBase, candidate: Scores, base: Scores) -> RuleResult:
    gain = _difference(rule.task, candidate, base, rule.confidence)
    passed = gain.bound > rule.at_least
    notes = []
    if 0 < rule.at_least < 2 * gain.standard_error:
        notes.append(_noise("the gain asked for", rule.at_least, gain))
    return _paired(
        rule,
        candidate,
        base,
        gain,
        passed=passed,
        threshold=rule.at_least,
        reason=f"the gain over the base is {gain.mean:+.3f} and at least {gain.bound:+.3f} with "
        f"confidence {rule.confidence}; "
        f"{'exceeds' if passed else 'does not exceed'} {rule.at_least}",
        notes=notes,
    )


def _gain_on_any(rule: GainOnAny, candidate: Scores, base: Scores) -> RuleResult:
    """The numbers of the task with the clearest gain, at the confidence its rank asks for."""
    p_values = []
    for task in rule.tasks:
        items = candidate.items[task]
        difference = _correct(items) - _correct(base.items[task])
        p_values.append(difference_p(difference, clusters_of(items), rule.at_least))
    adjusted = holm(p_values)
    # Adjusted ones tie, at 1 and where one takes over a smaller one's.
    best = rule.tasks[p_values.index(min(p_values))]
    passed = min(adjusted) < 1 - rule.confidence
    strict = 1 - (1 - rule.confidence) / len(rule.tasks)
    gain = _difference(best, candidate, base, strict)
    found = ", ".join(f"{t} {p:.2g}" for t, p in zip(rule.tasks, adjusted, strict=True))
    return _paired(
        GainOverBase(rule="gain_over_base", task=best, at_least=rule.at_least, confidence=strict),
        candidate,
        base,
        gain,
        passed=passed,
        threshold=rule.at_least,
        reason=f"the clearest gain over the base is {gain.mean:+.3f} on {best}, at least "
        f"{gain.bound:+.3f} with confidence {strict:.4g}, which {len(rule.tasks)} tasks ask for; "
        f"{'exceeds' if passed else 'does not exceed'} {rule.at_least}",
        notes=[f"p-values adjusted for {len(rule.tasks)} tasks (Holm): {found}"],
    ).model_copy(update={"rule": "gain_on_any", "task": rule.task})


def _no_regression(rule: NoRegression, candidate: Scores, baseline: Scores) -> RuleResult:
    return _within_margin(rule, candidate, baseline, "baseline")


def no_loss(rule: NoLoss, bundle: Scores, model: Scores) -> RuleResult:
    """A bundle's loss against the model it was made from, on the same items."""
    return _within_margin(rule, bundle, model, "model")


def same_choices(bundle: Scores, model: Scores) -> RuleResult:
    """Whether a bundle chooses as its model on every item that has choices.

    The reports must be known to hold the same items, and one with choices at least.
    """
    pairs = [
        (task, ours, theirs)
        for task, items in sorted(bundle.items.items())
        for ours, theirs in zip(items, model.items[task], strict=True)
        if ours.choice >= 0 or theirs.choice >= 0
    ]
    apart = [
        f"{ours.id} of {task} (bundle {ours.choice}, model {theirs.choice})"
        for task, ours, theirs in pairs
        if ours.choice != theirs.choice
    ]
    items, same = len(pairs), len(pairs) - len(apart)
    reason = f"the bundle chooses as the model on {same} of {items} items"
    if apart:
        more = f" and {len(apart) - SHOWN} more" if len(apart) > SHOWN else ""
        reason += f", otherwise on {', '.join(apart[:SHOWN])}{more}"
    return RuleResult(
        rule="same_choices",
        task="all tasks",
        passed=not apart,
        reason=reason,
        candidate=same / items,
        threshold=1.0,
        confidence=1.0,
        items=items,
        clusters=items,
    )


def _within_margin(
    rule: NoRegression | NoLoss, candidate: Scores, baseline: Scores, role: str
) -> RuleResult:
    change = _difference(rule.task, candidate, baseline, rule.confidence)
    passed = change.bound >= -rule.margin
    notes = []
    if rule.margin < 2 * change.standard_error:
        notes.append(_noise("the margin", rule.margin, change))
    return _paired(
        rule,
        candidate,
        baseline,
        change,
        passed=passed,
        threshold=-rule.margin,
        reason=f"the change from the {role} is {change.mean:+.3f} and at least "
        f"{change.bound:+.3f} with confidence {rule.confidence}; a loss of {rule.margin} "
        f"{'is ruled out' if passed else 'cannot be ruled out'}",
        notes=notes,
    )


def _no_baseline(rule: NoRegression, candidate: Scores) -> RuleResult:
    """Passed, since a channel's first release must be possible; and marked as not judged."""
    items = candidate.items[rule.task]
    correct, clusters = _correct(items), clusters_of(items)
    return RuleResult(
        rule="no_regression",
        task=rule.task,
        passed=True,
        judged=False,
        reason="the baseline's channel is empty, so there is nothing to fall behind",
        candidate=float(correct.mean()),
        standard_error=clustered_standard_error(correct, clusters),
        threshold=-rule.margin,
        confidence=rule.confidence,
        items=len(items),
        clusters=max(clusters) + 1,
    )


def _paired(
    rule: GainOverBase | NoRegression | NoLoss,
    candidate: Scores,
    other: Scores,
    change: Estimate,
    *,
    passed: bool,
    threshold: float,
    reason: str,
    notes: list[str],
) -> RuleResult:
    ours, theirs = _correct(candidate.items[rule.task]), _correct(other.items[rule.task])
    wins, losses = int((ours > theirs).sum()), int((ours < theirs).sum())
    if change.clusters < change.items:
        notes = [*notes, "McNemar's p takes items as independent, here they are clustered"]
    return RuleResult(
        rule=rule.rule,
        task=rule.task,
        passed=passed,
        reason=reason,
        candidate=float(ours.mean()),
        other=float(theirs.mean()),
        difference=change.mean,
        standard_error=change.standard_error,
        bound=change.bound,
        threshold=threshold,
        confidence=rule.confidence,
        items=change.items,
        clusters=change.clusters,
        wins=wins,
        losses=losses,
        mcnemar_p=mcnemar_exact(wins, losses),
        notes=notes,
    )


def clusters_of(items: Sequence[Item]) -> list[int]:
    """The number of each item's cluster, from 0; an item without one stands alone."""
    numbers: dict[tuple[str, str], int] = {}
    keys = [("fact", item.cluster) if item.cluster else ("item", item.id) for item in items]
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _difference(task: str, ours: Scores, other: Scores, confidence: float) -> Estimate:
    items = ours.items[task]
    difference = _correct(items) - _correct(other.items[task])
    return difference_bound(difference, clusters_of(items), confidence)


def _correct(items: Sequence[Item]) -> np.ndarray:
    return np.array([value_of(item) for item in items], np.float64)


def _noise(what: str, value: float, change: Estimate) -> str:
    return f"{what} {value} lies within the noise: two standard errors are " + (
        f"{2 * change.standard_error:.3f}"
    )
