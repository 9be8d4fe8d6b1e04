"""`decision.png`: each rule's value, its one-sided bound, and the line the bound must reach."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from artifacts.decision import NOT_JUDGED, Decision, RuleResult

OWN = {"floor": "accuracy", "same_choices": "share of equal choices"}
"""Rules whose value is the candidate's own -> what it is; the others look at a difference."""
PASSED, FAILED, UNJUDGED = "#2a7f62", "#b3261e", "#666666"


def draw_decision(decision: Decision, path: Path) -> None:
    """Draw one row a rule. The same decision gives the same bytes on one matplotlib version."""
    figure = Figure(figsize=(8, 1.4 + 0.7 * len(decision.rules)))
    axes = figure.subplots()
    for row, result in enumerate(decision.rules):
        _draw_rule(axes, row, result)
    axes.set_yticks(
        range(len(decision.rules)),
        [f"{result.rule}\n{result.task}" for result in decision.rules],
    )
    axes.set_ylim(len(decision.rules) - 0.5, -0.5)
    axes.set_xlabel(measured(decision))
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_title(f"{decision.outcome}: dot = measured, end of line = bound, bar = must reach")
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})


def measured(decision: Decision) -> str:
    """What the axis shows, and for which rules."""
    rules: dict[str, list[str]] = {}
    for rule in dict.fromkeys(result.rule for result in decision.rules):
        rules.setdefault(OWN.get(rule, "difference in accuracy"), []).append(rule)
    return ", ".join(f"{shown} ({', '.join(names)})" for shown, names in rules.items())


def _draw_rule(axes: Axes, row: int, result: RuleResult) -> None:
    color = PASSED if result.passed else FAILED
    own = result.rule in OWN
    value = result.candidate if own else result.difference
    axes.plot([result.threshold] * 2, [row - 0.3, row + 0.3], color="black", linewidth=2)
    if value is None or not result.judged:
        axes.annotate(f"  {NOT_JUDGED}", (result.threshold, row), va="center", color=UNJUDGED)
        return
    if result.bound is not None:
        axes.plot([result.bound, value], [row, row], color=color, linewidth=3)
    axes.plot([value], [row], "o", color=color, markersize=8)
