"""Artifacts as Markdown for Prefect's user interface: figures, tables and pictures, all inside."""

import base64
from collections.abc import Mapping
from pathlib import Path

from artifacts.eval_report import TaskScores, read_report
from artifacts.manifest import Manifest
from flows.chain import Result
from flows.stage_process import StageOutcome

MAX_PAGE = 900_000
"""Characters; Prefect shows a Markdown artifact up to about 1 MB."""
MAX_TEXT = 100_000
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}


def step_page(name: str, outcome: StageOutcome) -> str:
    """One step's artifact: where it is, its headline, its own report and pictures."""
    manifest, path = outcome.manifest, outcome.path
    state = "done already" if outcome.skipped else f"{outcome.seconds:.0f} s"
    parts = [
        f"# {name}\n",
        f"{manifest.kind} `{manifest.digest[:16]}`, {state}, at `{path}`\n",
        headline_table(manifest),
    ]
    for entry in manifest.files:
        if entry.path.endswith(".md") and "/" not in entry.path and entry.size <= MAX_TEXT:
            parts.append((path / entry.path).read_text(encoding="utf-8"))
    return "\n".join(_with_pictures(parts, path, manifest))


def _with_pictures(parts: list[str], path: Path, manifest: Manifest) -> list[str]:
    """`parts` and as many of the artifact's pictures as one page holds."""
    room = MAX_PAGE - sum(map(len, parts))
    for entry in manifest.files:
        file = path / entry.path
        if file.suffix not in PICTURES or file.parent.name not in (path.name, "logs"):
            continue
        data = base64.b64encode(file.read_bytes()).decode()
        picture = f"\n![{file.stem}](data:{PICTURES[file.suffix]};base64,{data})\n"
        if len(picture) > room:
            parts.append(f"\n{entry.path} is too large to be shown here.\n")
            continue
        room -= len(picture)
        parts.append(picture)
    return parts


def headline_table(manifest: Manifest) -> str:
    """The headline figures as a table."""
    rows = [f"| {key} | {figure(value)} |" for key, value in manifest.headline.items()]
    return "\n".join(["| figure | value |", "|---|---|", *rows, ""])


def figure(value: object) -> str:
    """A headline value as people read it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() if isinstance(value, bool) else "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {figure(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(figure, value))
    return str(value).replace("|", "\\|").replace("\n", " ")


def scores_table(paths: Mapping[str, Path]) -> str:
    """Every eval-report among `paths` (step name -> artifact) side by side; empty without one."""
    reports = {
        name.removeprefix("evaluate-"): read_report(path)
        for name, path in paths.items()
        if path.parent.name == "eval-report"
    }
    tasks = dict.fromkeys(task for report in reports.values() for task in report.tasks)
    if not tasks:
        return ""
    lines = [
        "| task | items | chance | " + " | ".join(reports) + " |",
        "|---|---|---|" + "---|" * len(reports),
    ]
    for task in tasks:
        scores = [report.tasks.get(task) for report in reports.values()]
        known = next(score for score in scores if score)
        cells = ["-" if score is None else _accuracy(score) for score in scores]
        lines.append(f"| {task} | {known.items} | {known.chance:.1%} | " + " | ".join(cells) + " |")
    return "\n".join(["Accuracy on all items, with its standard error:", "", *lines, ""])


def _accuracy(score: TaskScores) -> str:
    if not score.is_share:
        return f"{score.micro:.4f} {score.metric.replace('_', ' ')}"
    error = "" if score.micro_stderr is None else f" ± {score.micro_stderr:.1%}"
    return f"{score.micro:.1%}{error}"


def run_page(name: str, result: Result) -> str:
    """A whole run: every step with its state, time and artifact, and the scores side by side."""
    rows = [
        f"| {step} | {_state(step, outcome, result)} | {outcome.seconds:.1f} s "
        f"| {outcome.manifest.kind} | `{outcome.manifest.digest[:16]}` | `{outcome.path}` |"
        for step, outcome in result.outcomes.items()
    ]
    head = ["| step | state | time | kind | digest | artifact |", "|---|---|---|---|---|---|"]
    scores = scores_table({step: outcome.path for step, outcome in result.outcomes.items()})
    return "\n".join([f"# {name}\n", *head, *rows, "", scores])


def _state(step: str, outcome: StageOutcome, result: Result) -> str:
    if step == result.rejected_by:
        return "rejected"
    return "done already" if outcome.skipped else "done"
