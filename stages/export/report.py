"""The proof for people: a table and a picture."""

import math
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path

from stages.export.agreement import Agreement, CaseResult

DOTS = (("o", "#2a7ab0"), ("^", "#27865a"), ("s", "#8e5bb5"), ("D", "#b5852b"))
"""Shape and colour of an engine's dots."""
FAILED = "#c0392b"
FLOOR = 1e-9
"""Where an error of 0 is drawn on the logarithmic axis."""


def table(agreement: Agreement) -> str:
    """`agreement.md`."""
    verdict = "Proved" if not agreement.problems else "Not proved"
    lines = [
        "# ONNX against MindSpore",
        "",
        f"{verdict}: {len(agreement.cases)} cases up to {agreement.longest} tokens in onnxruntime "
        f"(CPU), weights in {agreement.precision}, against MindSpore's logits in float32.",
        "",
        "Error is the largest absolute difference of a logit, divided by the root mean square of "
        "the reference logits if that is above 1; compared are the rows of tokens that count. "
        f"Allowed is {agreement.threshold:.0e}{_and_divergence(agreement)}.",
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
    lines += ["", *_engines(agreement)]
    if agreement.problems:
        lines += ["", "## Problems", "", *(f"- {problem}" for problem in agreement.problems)]
    lines += [
        "",
        "## Cases",
        "",
        "In onnxruntime. Named `kind batch x (past + new)`.",
        "",
        "| case | max abs | error |",
        "|---|---|---|",
    ]
    lines += [
        f"| {each.case} | {_number(each.max_abs)} | {_number(each.scaled)} |"
        for each in agreement.cases
    ]
    return "\n".join(lines) + "\n"


def _engines(agreement: Agreement) -> list[str]:
    """One row an engine: errors, divergence of the next-token distributions, and the checks."""
    checks = list(dict.fromkeys(c.name for each in agreement.engines for c in each.checks))
    titles = ["engine", "cases", "max abs", "max rel", "max error", "mean KL", "max KL", "same top"]
    lines = [f"| {' | '.join([*titles, *checks])} |", "|---" * (len(titles) + len(checks)) + "|"]
    for each in agreement.engines:
        top1 = each.mean("top1")
        largest = (_number(each.largest(name)) for name in ("max_abs", "max_rel", "scaled"))
        said = {check.name: check.problem or check.said for check in each.checks}
        cells = [
            f"{each.engine} {each.version}".strip(),
            str(len(each.cases)),
            *largest,
            _number(each.mean("kl")),
            _number(each.largest("max_kl")),
            "-" if top1 is None else f"{top1:.2%}",
            *(said.get(name, "-") for name in checks),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _and_divergence(agreement: Agreement) -> str:
    most = agreement.max_mean_kl
    return "" if most is None else f", and a mean divergence (KL) of {most:g} nats"


def picture(agreement: Agreement, path: Path) -> None:
    """`agreement.png`: one dot a case, one row a kind, the allowed error as a line.

    Every engine has its shape of dot, failed cases are red.
    """
    from matplotlib.figure import Figure  # half a second, which bad input need not wait for

    groups = _by_kind(agreement.cases)
    rows = {kind: row for row, kind in enumerate(groups)}
    figure = Figure(figsize=(8, 0.42 * len(groups) + 1.8), layout="constrained")
    axes = figure.add_subplot()
    for engine, (marker, colour) in zip(agreement.engines, cycle(DOTS), strict=False):
        for good in (True, False):
            picked = [each for each in engine.cases if (each.problem is None) == good]
            errors = [_drawable(each.scaled, agreement.threshold) for each in picked]
            axes.scatter(
                errors,
                [rows[each.kind] for each in picked],
                s=18,
                marker=marker,
                color=colour if good else FAILED,
                alpha=0.6,
                label=engine.engine if good else None,
            )
    figure.legend(loc="outside lower right", ncols=len(DOTS), fontsize=8)
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
