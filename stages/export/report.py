"""The proof for people: a table and a picture."""

import math
from collections.abc import Iterable
from pathlib import Path

from stages.export.agreement import Agreement, CaseResult

FLOOR = 1e-9
"""Where an error of 0 is drawn on the logarithmic axis."""


def table(agreement: Agreement) -> str:
    """`agreement.md`."""
    verdict = "Proved" if not agreement.problems else "Not proved"
    lines = [
        "# ONNX against MindSpore",
        "",
        f"{verdict}: {len(agreement.cases)} cases up to {agreement.longest} tokens in onnxruntime "
        f"(CPU), float32, against MindSpore's logits.",
        "",
        "Error is the largest absolute difference of a logit, divided by the root mean square of "
        "the reference logits if that is above 1; compared are the rows of tokens that count. "
        f"Allowed is {agreement.threshold:.0e}.",
        "",
        "| kind | cases | token rows | max abs | max error | failed |",
        "|---|---|---|---|---|---|",
    ]
    for kind, results in _by_kind(agreement.cases).items():
        lines.append(
            f"| {kind} | {len(results)} | {sum(each.rows for each in results)} "
            f"| {_largest(each.max_abs for each in results)} "
            f"| {_largest(each.scaled for each in results)} "
            f"| {sum(each.problem is not None for each in results)} |"
        )
    if agreement.problems:
        lines += ["", "## Problems", "", *(f"- {problem}" for problem in agreement.problems)]
    lines += [
        "",
        "## Cases",
        "",
        "Named `kind batch x (past + new)`.",
        "",
        "| case | max abs | error |",
        "|---|---|---|",
    ]
    lines += [
        f"| {each.case} | {_number(each.max_abs)} | {_number(each.scaled)} |"
        for each in agreement.cases
    ]
    return "\n".join(lines) + "\n"


def picture(agreement: Agreement, path: Path) -> None:
    """`agreement.png`: one dot a case, one row a kind, the allowed error as a line."""
    from matplotlib.figure import Figure  # half a second, which bad input need not wait for

    groups = _by_kind(agreement.cases)
    figure = Figure(figsize=(8, 0.42 * len(groups) + 1.6), layout="constrained")
    axes = figure.add_subplot()
    for row, results in enumerate(groups.values()):
        for good, colour in ((True, "#2a7ab0"), (False, "#c0392b")):
            picked = [each for each in results if (each.problem is None) == good]
            errors = [_drawable(each.scaled, agreement.threshold) for each in picked]
            axes.scatter(errors, [row] * len(errors), s=18, color=colour, alpha=0.6)
    axes.axvline(agreement.threshold, color="#444444", linestyle="--", linewidth=1)
    axes.text(agreement.threshold, -0.8, "allowed ", ha="right", fontsize=8, color="#444444")
    axes.set_xscale("log")
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -1.1)
    axes.set_xlabel("largest error of a logit (logits of order 1)")
    axes.set_title(f"ONNX against MindSpore, {len(agreement.cases)} cases")
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _by_kind(cases: list[CaseResult]) -> dict[str, list[CaseResult]]:
    groups: dict[str, list[CaseResult]] = {}
    for each in cases:
        groups.setdefault(each.kind, []).append(each)
    return groups


def _largest(values: Iterable[float | None]) -> str:
    return _number(max((value for value in values if value is not None), default=None))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _drawable(error: float | None, threshold: float) -> float:
    """A case that broke stands far to the right of the line."""
    return threshold * 1e6 if error is None or math.isnan(error) else max(error, FLOOR)
