"""Artifacts as Markdown for Prefect's user interface: figures, tables and pictures, all inside."""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from artifacts.eval_report import TaskScores, read_report
from artifacts.lineage import ancestors
from artifacts.manifest import Manifest
from flows.chain import Result
from flows.stage_process import StageOutcome

MAX_PAGE = 900_000
"""Characters; Prefect shows a Markdown artifact up to about 1 MB."""
MAX_TEXT = 100_000
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
FILE_PICTURE = re.compile(r"^!\[[^]\n]*\]\((?!data:)[^)\n]*\)\n?", re.MULTILINE)
"""A line that shows a picture from a file, which no page here can reach."""


class Links:
    """Where in Prefect's user interface the pages of this run's artifacts are."""

    def __init__(self, base: str = "") -> None:
        """`base` is the path under which the interface stands, such as /v2."""
        self._base = base.rstrip("/")
        self._ids: dict[str, UUID] = {}
        self._names: dict[str, str] = {}

    def add(self, step: str, outcome: StageOutcome, page: UUID) -> None:
        """A step's page is there now; of two steps with one artifact the first counts."""
        self._ids.setdefault(outcome.manifest.identity, page)
        self._names.setdefault(outcome.manifest.identity, step)

    def to(self, identity: str, text: str | None = None) -> str:
        """A link to the page of an artifact, or plain text if this run has none of it."""
        if identity not in self._ids:
            return text or f"`{identity[:16]}`"
        page = f"{self._base}/artifacts/artifact/{self._ids[identity]}"
        return f"[{text or self._names[identity]}]({page})"


NO_LINKS = Links()


def step_page(name: str, outcome: StageOutcome, links: Links = NO_LINKS) -> str:
    """One step's artifact: where it is, its headline, its own report and pictures."""
    manifest, path = outcome.manifest, outcome.path
    state = "done already" if outcome.skipped else f"{outcome.seconds:.0f} s"
    parts = [
        f"# {name}\n",
        f"{manifest.kind} `{manifest.digest[:16]}`, {state}, at `{path}`\n",
        _made_from(manifest, links),
        headline_table(manifest),
    ]
    if manifest.kind == "release":
        parts.append(lineage(path, links))
    if manifest.config.get("approval") is True and not outcome.rejected:
        parts.append("The rules approve; a person's word is asked for as well.\n")
    for entry in manifest.files:
        if entry.path.endswith(".md") and "/" not in entry.path and entry.size <= MAX_TEXT:
            parts.append(page_text(path / entry.path))
    return "\n".join(_with_pictures(parts, path, manifest))


def page_text(file: Path) -> str:
    """A stage's Markdown page without pictures from files: they are shown beside it."""
    return FILE_PICTURE.sub("", file.read_text(encoding="utf-8"))


def _made_from(manifest: Manifest, links: Links) -> str:
    made = [f"{role} {links.to(entry.identity)}" for role, entry in manifest.inputs.items()]
    return f"Made from {', '.join(made)}.\n" if made else ""


def lineage(path: Path, links: Links) -> str:
    """What an artifact was made from, back to the data, as a list."""
    lines = ["## Lineage\n"]
    for one in ancestors(path):
        text = f"{one.title}: {one.kind} `{one.digest[:16]}`"
        lines.append(f"{'  ' * one.depth}- {links.to(one.identity, text)}")
    return "\n".join([*lines, ""])


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
        return ", ".join(map(figure, value)) or "none"
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
        chance = f"{known.chance:.1%}" if known.chance else "-"
        lines.append(f"| {task} | {known.items} | {chance} | " + " | ".join(cells) + " |")
    return "\n".join(["Accuracy on all items, with its standard error:", "", *lines, ""])


def _accuracy(score: TaskScores) -> str:
    if not score.is_share:
        return f"{score.micro:.4f} {score.metric.replace('_', ' ')}"
    error = "" if score.micro_stderr is None else f" ± {score.micro_stderr:.1%}"
    return f"{score.micro:.1%}{error}"


def run_page(name: str, result: Result, links: Links = NO_LINKS) -> str:
    """A whole run: every step with its state, time and artifact, and the scores side by side."""
    rows = [
        f"| {links.to(outcome.manifest.identity, step)} | {_state(step, outcome, result)} "
        f"| {outcome.seconds:.1f} s | {outcome.manifest.kind} "
        f"| `{outcome.manifest.digest[:16]}` | `{outcome.path}` |"
        for step, outcome in result.outcomes.items()
    ]
    head = ["| step | state | time | kind | digest | artifact |", "|---|---|---|---|---|---|"]
    scores = scores_table({step: outcome.path for step, outcome in result.outcomes.items()})
    return "\n".join([f"# {name}\n", *head, *rows, "", scores])


def _state(step: str, outcome: StageOutcome, result: Result) -> str:
    if step == result.rejected_by:
        return "rejected"
    return "done already" if outcome.skipped else "done"
