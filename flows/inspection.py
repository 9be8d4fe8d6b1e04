"""`mindcycle ls`, `show` and `verify`: looking at what is in a store."""

from pathlib import Path
from typing import get_args

from artifacts.errors import BadInput
from artifacts.lineage import ancestors, verify_chain
from artifacts.manifest import Kind, read_manifest
from artifacts.references import find_named
from artifacts.store import check_store, list_artifacts
from artifacts.validation import shown
from artifacts.wording import counted
from flows.columns import columns, nearby, visible
from flows.pages import figure


def print_list(store: Path, kind: str | None) -> None:
    """A line an artifact, oldest first.

    Raises BadInput if there is no store or no such kind, and after the list for manifests that
    cannot be read.
    """
    check_store(store)
    if kind is not None and kind not in get_args(Kind):
        raise BadInput(f"kind: is {shown(kind)}; {', '.join(get_args(Kind))} would be right")
    rows = [("kind", "identity", "digest", "finished", "size", "headline")]
    problems: list[str] = []
    for path, manifest in list_artifacts(store, problems):
        if kind in (None, manifest.kind):
            size = size_text(sum(entry.size for entry in manifest.files))
            digest, headline = manifest.digest[:16], figure(manifest.headline)
            rows.append((manifest.kind, path.name, digest, manifest.finished, size, headline))
    print(columns(rows), flush=True)
    if problems:
        raise BadInput(*problems)


def print_artifact(reference: str, store: Path) -> None:
    """Everything the manifest says. Raises BadInput if there is no such artifact."""
    path = find_named(reference, store)
    manifest = read_manifest(path)
    rows = [
        ("kind", f"{manifest.kind}, made by {manifest.stage} {manifest.code_version}"),
        ("directory", str(path)),
        ("identity", manifest.identity),
        ("digest", manifest.digest),
        ("made", f"{manifest.started} to {manifest.finished} on {manifest.host.get('name')}"),
    ]
    for role, entry in manifest.inputs.items():
        rows.append((f"from {role}", f"{entry.kind} {entry.identity[:16]}, {entry.digest[:16]}"))
    for source in manifest.sources:
        about = f"{size_text(source.size)}, {source.sha256[:16]}"
        rows.append(("from file", f"{source.path} ({about})"))
    rows += [(key, figure(value)) for key, value in manifest.headline.items()]
    rows += [(f"seed {name}", str(seed)) for name, seed in manifest.seeds.items()]
    rows += [("config", figure(manifest.config)), ("packages", figure(manifest.packages))]
    print(columns(rows) + "\n")
    files = [(file.path, size_text(file.size), file.sha256[:16]) for file in manifest.files]
    print(columns([("file", "size", "sha256"), *files]))


def print_lineage(reference: str, store: Path) -> None:
    """What an artifact was made from, and that from what, indented, back to the files.

    Raises BadInput if there is no such artifact.
    """
    rows = [("artifact", "kind", "identity", "finished", "size")]
    for one in ancestors(find_named(reference, store)):
        indent = "  " * one.depth
        if one.manifest is None:
            rows.append((indent + one.title, one.kind, one.identity[:16], "not in the store", ""))
            continue
        size = size_text(sum(file.size for file in one.manifest.files))
        finished = one.manifest.finished
        rows.append((indent + one.title, one.kind, one.identity[:16], finished, size))
        for source in one.manifest.sources:
            rows.append((f"{indent}  {source.path}", "file", source.sha256[:16], "", ""))
    print(columns(rows))


def print_verification(reference: str, store: Path) -> bool:
    """Check an artifact and its chain back to the data; whether every byte is right."""
    path = find_named(reference, store)
    # An artifact stands in its own store, whatever store was searched.
    report = verify_chain(path)
    for checked, manifest in report.checked:
        bad = any(problem.startswith(str(checked)) for problem in report.problems)
        print(f"{'WRONG' if bad else 'right'}  {manifest.kind:<12} {nearby(checked)}")
    for note in report.notes:
        print(f"note   {visible(note)}")
    for problem in report.problems:
        print(f"WRONG  {visible(problem)}")
    count = len(report.checked)
    print(f"{counted(count, 'artifact')} checked, {counted(len(report.problems), 'problem')}")
    return not report.problems


def size_text(size: float) -> str:
    """Bytes as people read them: 12 B, 3.4 MB."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
