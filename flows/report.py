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

from artifacts.errors import BadInput
from artifacts.lineage import Ancestor, ancestors
from artifacts.manifest import MANIFEST, Manifest, manifest_seconds
from artifacts.references import find_named
from artifacts.writing import write_file_atomically
from flows.console import duration
from flows.inspection import size_text
from flows.lifecycle import FINETUNE_FULL, STEPS
from flows.naming import step_names
from flows.pages import MAX_TEXT, PICTURES, figure, page_text, scores_table

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
    root = find_named(reference, store)
    chain = ancestors(root)
    file = to or Path(f"{root.parent.name}-{root.name}.html")
    _check_place(file)
    try:
        write_file_atomically(file, report_page(chain).encode())
    except OSError as error:
        raise BadInput(f"--to: {file} cannot be written: {error.strerror}") from None
    return file


def _check_place(file: Path) -> None:
    """Raise BadInput for a place where a page cannot or must not be written."""
    if file.is_dir():
        raise BadInput(f"--to: {file} is a directory; a file would be right")
    for folder in file.resolve().parents:
        if (folder / MANIFEST).is_file():
            raise BadInput(
                f"--to: {file} lies inside the artifact {folder}, whose files are fixed; "
                "a place outside of it would be right"
            )


def report_page(chain: list[Ancestor]) -> str:
    """The page about a chain as `ancestors` gives it: the artifact first, the data last."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    root = chain[0]
    oldest_first = sorted(chain, key=_made)
    names = step_names(chain)
    scores = scores_table({names[one.identity]: one.path for one in oldest_first if one.manifest})
    commits = {made.host.get("commit", "unknown") for made in _own(chain)}
    config, why_none = run_yaml(chain)
    return environment.get_template(TEMPLATE).render(
        root=root,
        outcome=_outcome(chain),
        chain=chain,
        parts=[_part(one, names[one.identity]) for one in oldest_first if one.manifest],
        sources=list(_sources(chain)),
        scores=_markdown(scores) if scores else None,
        packages=_packages(chain),
        commits=sorted(commits),
        config=config,
        why_none=why_none,
        figure=figure,
        size_text=size_text,
    )


def run_yaml(chain: list[Ancestor]) -> tuple[str, str]:
    """The config that makes this chain again, from its manifests; if it was not one run's, an
    empty text and why."""
    sections: dict[str, Any] = {}
    baseline = None
    for made in _own(chain):
        section = SECTIONS.get(made.stage, made.stage)
        if sections.setdefault(section, made.config) != made.config:
            return "", f"two steps of the stage {section} had different configs"
        if made.stage == "pretrain" and "initial" in made.inputs:
            return "", "pretrain began from weights that were given to it"
        if made.stage == "gate" and "baseline" in made.inputs:
            baseline = made.inputs["baseline"].digest
    order = list(dict.fromkeys(step.spec.name for step in STEPS))
    needed = ("corpus", "pretrain", "finetune", "evaluate", "gate")
    if missing := [name for name in needed if name not in sections]:
        return "", f"nothing in it was made by {' or '.join(missing)}"
    known = {name: sections[name] for name in order if name in sections}
    head = {"name": "again", **({"baseline": baseline} if baseline else {})}
    return yaml.safe_dump({**head, **known}, sort_keys=False, allow_unicode=True), ""


def _own(chain: list[Ancestor]) -> list[Manifest]:
    """What the first's own run made or found: a baseline's release came from another one."""
    known = {one.identity: one.manifest for one in chain}
    found: dict[str, Manifest] = {}
    left = [chain[0].identity]
    while left:
        identity = left.pop()
        made = known.get(identity)
        if made is not None and identity not in found:
            found[identity] = made
            left += [one.identity for role, one in made.inputs.items() if role != "baseline"]
    return list(found.values())


def _made(one: Ancestor) -> tuple[str, str, int]:
    """When; of two in one second, that further back goes first."""
    made = one.manifest
    return (made.finished, made.started, -one.depth) if made else ("", "", -one.depth)


def _outcome(chain: list[Ancestor]) -> str:
    kinds = {one.manifest.kind: one.manifest for one in reversed(chain) if one.manifest}
    if chain[0].manifest and chain[0].manifest.kind == "release":
        return "released"
    if "decision" in kinds:
        return str(kinds["decision"].headline.get("outcome", "decided"))
    return ""


def _part(one: Ancestor, title: str) -> Part:
    manifest = one.manifest
    assert manifest is not None
    texts, pictures = [], []
    for entry in manifest.files:
        file = one.path / entry.path
        if not file.is_file():
            continue
        if entry.path.endswith(".md") and "/" not in entry.path and entry.size <= MAX_TEXT:
            texts.append(_markdown(page_text(file)))
        if file.suffix in PICTURES and file.parent.name in (one.path.name, "logs"):
            data = base64.b64encode(file.read_bytes()).decode()
            pictures.append((file.stem, f"data:{PICTURES[file.suffix]};base64,{data}"))
    figures = [(key, figure(value)) for key, value in manifest.headline.items()]
    size = size_text(sum(entry.size for entry in manifest.files))
    seconds = duration(manifest_seconds(manifest))
    return Part(title, one, size, seconds, figures, texts, pictures)


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
