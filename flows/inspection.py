"""`mindcycle ls`, `show` and `verify`: looking at what is in a store."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from artifacts.errors import BadInput
from artifacts.lineage import verify_chain
from artifacts.manifest import Manifest, read_manifest
from artifacts.store import find_artifact, list_artifacts
from flows.pages import figure


def print_list(store: Path, kind: str | None) -> None:
    """A line an artifact, oldest first. Raises BadInput if there is no store."""
    if not store.is_dir():
        raise BadInput(f"store: {store} is no directory")
    table = Table(box=None)
    for column in ("kind", "identity", "digest", "finished", "size", "headline"):
        table.add_column(column, no_wrap=True)
    for path, manifest in list_artifacts(store):
        if kind in (None, manifest.kind):
            size = _size(sum(entry.size for entry in manifest.files))
            table.add_row(
                manifest.kind,
                path.name,
                manifest.digest[:16],
                manifest.finished,
                size,
                _headline(manifest),
            )
    Console().print(table)


def print_artifact(reference: str, store: Path) -> None:
    """Everything the manifest says. Raises BadInput if there is no such artifact."""
    path = find_artifact(store, reference)
    manifest = read_manifest(path)
    about = Table(box=None, show_header=False)
    about.add_row("kind", f"{manifest.kind}, made by {manifest.stage} {manifest.code_version}")
    about.add_row("directory", str(path))
    about.add_row("identity", manifest.identity)
    about.add_row("digest", manifest.digest)
    about.add_row("made", f"{manifest.started} to {manifest.finished} on {manifest.host['name']}")
    for role, entry in manifest.inputs.items():
        about.add_row(f"from {role}", f"{entry.kind} {entry.identity[:16]}, {entry.digest[:16]}")
    for source in manifest.sources:
        about.add_row("from file", f"{source.path} ({_size(source.size)}, {source.sha256[:16]})")
    for key, value in manifest.headline.items():
        about.add_row(key, figure(value))
    for name, seed in manifest.seeds.items():
        about.add_row(f"seed {name}", str(seed))
    about.add_row("config", figure(manifest.config))
    about.add_row("packages", figure(manifest.packages))
    files = Table(box=None)
    for column in ("file", "size", "sha256"):
        files.add_column(column, no_wrap=True)
    for file in manifest.files:
        files.add_row(file.path, _size(file.size), file.sha256[:16])
    console = Console()
    console.print(about)
    console.print(files)


def print_verification(reference: str, store: Path) -> bool:
    """Check an artifact and its chain back to the data; whether every byte is right."""
    path = find_artifact(store, reference)
    # An artifact stands in its own store, whatever store was searched.
    report = verify_chain(path)
    for checked, manifest in report.checked:
        bad = any(problem.startswith(str(checked)) for problem in report.problems)
        print(f"{'WRONG' if bad else 'right'}  {manifest.kind:<12} {checked}")
    for note in report.notes:
        print(f"note   {note}")
    for problem in report.problems:
        print(f"WRONG  {problem}")
    count = len(report.checked)
    print(f"{count} artifacts checked, {len(report.problems)} problems")
    return not report.problems


def _headline(manifest: Manifest) -> str:
    return ", ".join(f"{key} {figure(value)}" for key, value in manifest.headline.items())


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
