"""`mindcycle report`: one HTML file about an artifact and all it was made from, to be mailed.

Everything is inside: pictures as data, no script, nothing is fetched. What stages have written is
shown as text; HTML in it stays text.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markupsafe import Markup

from artifacts.lineage import Ancestor, ancestors
from artifacts.manifest import manifest_seconds
from artifacts.store import find_artifact
from artifacts.writing import write_file_atomically
from flows.console import duration
from flows.inspection import size_text
from flows.lifecycle import FINETUNE_FULL, STEPS
from flows.pages import MAX_TEXT, PICTURES, figure, scores_table

TEMPLATE = "report.html.j2"
SECTIONS = {FINETUNE_FULL.name: "finetune"}
"""Stages whose config stands in a section of another name."""


@dataclass(frozen=True)
class Part:
    """One artifact as the page shows it."""

    title: str
    about: Ancestor
    size: str
    seconds: str
    figures: list[tuple[str, str]]
    pages: list[Markup]
    pictures: list[tuple[str, str]]
    """Name and data URI."""


def write_report(reference: str, store: Path, to: Path | None) -> Path:
    """Write the report of an artifact; returns where. Raises BadInput."""
    root = find_artifact(store, reference)
    chain = ancestors(root)
    file = to or Path(f"{root.parent.name}-{root.name}.html")
    write_file_atomically(file, report_page(chain).encode())
    return file


def report_page(chain: list[Ancestor]) -> str:
    """The page about a chain as `ancestors` gives it: the artifact first, the data last."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    root = chain[0]
    oldest_first = sorted(chain, key=lambda one: one.manifest.finished if one.manifest else "")
    scores = scores_table({one.title: one.path for one in oldest_first if one.manifest is not None})
    commits = {one.manifest.host.get("commit", "unknown") for one in chain if one.manifest}
    return environment.get_template(TEMPLATE).render(
        root=root,
        outcome=_outcome(chain),
        chain=chain,
        parts=[_part(one) for one in oldest_first if one.manifest],
        sources=list(_sources(chain)),
        scores=_markdown(scores) if scores else None,
        packages=_packages(chain),
        commits=sorted(commits),
        config=run_yaml(chain),
        figure=figure,
        size_text=size_text,
    )


def run_yaml(chain: list[Ancestor]) -> str:
    """The config that makes this chain again, from its manifests; empty if it was not one run's."""
    sections: dict[str, Any] = {}
    baseline = None
    for one in chain:
        if one.manifest:
            sections[SECTIONS.get(one.manifest.stage, one.manifest.stage)] = one.manifest.config
            if one.manifest.stage == "gate" and "baseline" in one.manifest.inputs:
                baseline = one.manifest.inputs["baseline"].digest
    order = list(dict.fromkeys(step.spec.name for step in STEPS))
    if not {"corpus", "pretrain", "finetune", "evaluate", "gate"} <= sections.keys():
        return ""
    known = {name: sections[name] for name in order if name in sections}
    head = {"name": "again", **({"baseline": baseline} if baseline else {})}
    return yaml.safe_dump({**head, **known}, sort_keys=False, allow_unicode=True)


def _outcome(chain: list[Ancestor]) -> str:
    kinds = {one.manifest.kind: one.manifest for one in reversed(chain) if one.manifest}
    if chain[0].manifest and chain[0].manifest.kind == "release":
        return "released"
    if "decision" in kinds:
        return str(kinds["decision"].headline.get("outcome", "decided"))
    return ""


def _part(one: Ancestor) -> Part:
    manifest = one.manifest
    assert manifest is not None
    texts, pictures = [], []
    for entry in manifest.files:
        file = one.path / entry.path
        if not file.is_file():
            continue
        if entry.path.endswith(".md") and "/" not in entry.path and entry.size <= MAX_TEXT:
            texts.append(_markdown(file.read_text(encoding="utf-8")))
        if file.suffix in PICTURES and file.parent.name in (one.path.name, "logs"):
            data = base64.b64encode(file.read_bytes()).decode()
            pictures.append((file.stem, f"data:{PICTURES[file.suffix]};base64,{data}"))
    figures = [(key, figure(value)) for key, value in manifest.headline.items()]
    size = size_text(sum(entry.size for entry in manifest.files))
    return Part(
        one.title, one, size, duration(manifest_seconds(manifest)), figures, texts, pictures
    )


def _sources(chain: list[Ancestor]) -> Iterator[tuple[str, str, int, str]]:
    for one in chain:
        for source in one.manifest.sources if one.manifest else ():
            yield one.title, source.path, source.size, source.sha256


def _packages(chain: list[Ancestor]) -> list[tuple[str, str]]:
    """Every package with its version, or its versions if stages ran under several."""
    found: dict[str, set[str]] = {}
    for one in chain:
        for name, version in (one.manifest.packages if one.manifest else {}).items():
            found.setdefault(name, set()).add(version)
    return [(name, ", ".join(sorted(versions))) for name, versions in sorted(found.items())]


def _markdown(text: str) -> Markup:
    # Without HTML, and without links or pictures that would be fetched.
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image"])
    return Markup(parser.render(text))
