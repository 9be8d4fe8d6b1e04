"""Two or more eval-reports item by item: what the gate decides by, for people to look at."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.errors import BadInput
from artifacts.eval_report import Item, value_of
from stages.gate.alike import condition_differences, task_differences
from stages.gate.rules import Scores, clusters_of
from stages.gate.statistics import bootstrap_interval, holm, mcnemar_exact


@dataclass(frozen=True)
class Compared:
    """One model against the first one, on the items of a task or of one of its groups."""

    model: str
    task: str
    group: str | None
    """A category of subjects; None is the whole task."""
    items: int
    first: float
    """Micro accuracy of the first model."""
    other: float
    difference: float
    """other - first."""
    low: float
    """Bounds of the 95 % bootstrap interval of the difference; clusters are drawn whole."""
    high: float
    wins: int
    """Items only the other has right."""
    losses: int
    """Items only the first has right."""
    p: float
    """Exact two-sided McNemar p-value, items taken as independent."""
    adjusted_p: float = 1.0
    """The same, adjusted for all whole-task comparisons made together (Holm); for a group, of all
    groups."""


def compare(names: Sequence[str], reports: Sequence[Scores]) -> list[Compared]:
    """Every report against the first, on the tasks that all hold, whole and by group.

    Raises BadInput naming every difference if they are not alike.
    """
    first, others = reports[0], reports[1:]
    shared = [
        task
        for task, scored in first.report.tasks.items()
        if all(task in other.items for other in reports) and scored.by_item
    ]
    problems = [] if shared else [f"{names[0]}: shares no task with the others"]
    for name, other in zip(names[1:], others, strict=True):
        found = condition_differences(first.report, other.report, name)
        for task in shared:
            items = first.items[task], other.items[task]
            found += task_differences(task, first.report, other.report, *items, name)
        problems += [
            f"{name}: is not comparable with {names[0]}: "
            + text.replace("the candidate's", f"{names[0]}'s")
            .replace(f"the {name}'s", f"{name}'s")
            .replace("candidate", names[0])
            + "; score both alike"
            for text in found
        ]
    if problems:
        raise BadInput(*problems)
    rows = [
        _compared(name, task, group, first, other)
        for task in shared
        for group in (None, *first.report.tasks[task].groups)
        for name, other in zip(names[1:], others, strict=True)
    ]
    adjusted = {
        whole: iter(holm([row.p for row in rows if (row.group is None) == whole]))
        for whole in (True, False)
    }
    return [dataclasses.replace(row, adjusted_p=next(adjusted[row.group is None])) for row in rows]


def _compared(name: str, task: str, group: str | None, first: Scores, other: Scores) -> Compared:
    subjects = first.report.tasks[task].subjects

    def chosen(scores: Scores) -> list[Item]:
        return [
            item
            for item in scores.items[task]
            if group is None or subjects[item.subject].category == group
        ]

    ours, theirs = chosen(first), chosen(other)
    before, after = (np.array([value_of(item) for item in side], float) for side in (ours, theirs))
    difference = after - before
    low, high = bootstrap_interval(difference, clusters_of(ours))
    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    return Compared(
        model=name,
        task=task,
        group=group,
        items=len(ours),
        first=float(before.mean()),
        other=float(after.mean()),
        difference=float(difference.mean()),
        low=low,
        high=high,
        wins=wins,
        losses=losses,
        p=mcnemar_exact(wins, losses),
    )


def as_markdown(names: Sequence[str], rows: Sequence[Compared]) -> str:
    """The comparison as a page."""
    lines = [
        f"# Against {names[0]}",
        "",
        "| task | model | items | accuracy | first | difference, 95 % | wins | losses "
        "| McNemar p | adjusted |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = row.task if row.group is None else f"- {row.group}"
        lines.append(
            f"| {name} | {row.model} | {row.items} | {100 * row.other:.2f} | {100 * row.first:.2f} "
            f"| {100 * row.difference:+.2f} ({100 * row.low:+.2f} to {100 * row.high:+.2f}) "
            f"| {row.wins} | {row.losses} | {row.p:.2g} | {row.adjusted_p:.2g} |"
        )
    lines += [
        "",
        "Percent right on the same items. Wins are items that only the model has right, losses "
        "those that only the first has. The interval is a bootstrap's (10,000 draws; items that "
        "test one fact are drawn together). p is McNemar's, exact and two-sided; beside it, "
        "adjusted for the number of comparisons (Holm).",
    ]
    return "\n".join(lines) + "\n"
