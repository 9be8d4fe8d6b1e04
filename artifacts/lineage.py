"""From an artifact back to the data: is every byte on the way what its manifest says?"""

from dataclasses import dataclass, field
from pathlib import Path

from artifacts.digest import sha256_file
from artifacts.errors import BadInput
from artifacts.manifest import Manifest, problems_with_files, read_manifest
from artifacts.store import artifact_path


@dataclass
class ChainReport:
    """What `verify_chain` found."""

    checked: list[tuple[Path, Manifest]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_chain(path: Path, store: Path | None = None) -> ChainReport:
    """Check an artifact, everything it was made from, and the source files that are still there.

    `store` is where the inputs are looked for; by default the store the artifact stands in.
    """
    report = ChainReport()
    store = store or path.resolve().parent.parent
    _verify(path, store, report, seen=set())
    return report


@dataclass(frozen=True)
class Ancestor:
    """An artifact that another was made from, or that other itself."""

    title: str
    """What it was to what was made from it: `role`, or the stage's name for the first."""
    depth: int
    """Steps back from the first."""
    kind: str
    identity: str
    digest: str
    path: Path
    manifest: Manifest | None
    """None if it is no longer in the store."""


def ancestors(path: Path) -> list[Ancestor]:
    """An artifact and all it was made from, each once, depth first. Reads manifests only.

    Raises BadInput if `path` is no artifact.
    """
    store = path.resolve().parent.parent
    manifest = read_manifest(path)
    first = Ancestor(
        manifest.stage, 0, manifest.kind, manifest.identity, manifest.digest, path, manifest
    )
    found = {first.identity: first}
    left = [first]
    while left:
        one = left.pop()
        found.setdefault(one.identity, one)
        inputs = one.manifest.inputs if one.manifest else {}
        for role, entry in reversed(inputs.items()):
            place = artifact_path(store, entry.kind, entry.identity)
            made = read_manifest(place) if place.is_dir() else None
            if entry.identity not in found:
                depth = one.depth + 1
                left.append(
                    Ancestor(role, depth, entry.kind, entry.identity, entry.digest, place, made)
                )
    return list(found.values())


def _verify(path: Path, store: Path, report: ChainReport, seen: set[str]) -> None:
    try:
        manifest = read_manifest(path)
    except BadInput as error:
        report.problems += error.problems
        return
    if manifest.identity in seen:
        return
    seen.add(manifest.identity)
    report.checked.append((path, manifest))
    report.problems += problems_with_files(path, manifest)
    for source in manifest.sources:
        file = Path(source.path)
        if not file.is_file():
            report.notes.append(f"{path}: its source {file} is not here, so it was not compared")
        elif file.stat().st_size != source.size or sha256_file(file) != source.sha256:
            report.problems.append(f"{file}: has changed since {path} was made from it")
    for role, entry in manifest.inputs.items():
        input_path = artifact_path(store, entry.kind, entry.identity)
        if not input_path.is_dir():
            report.problems.append(f"{input_path}: is missing, {path} was made from it ({role})")
            continue
        _verify(input_path, store, report, seen)
        try:
            found = read_manifest(input_path)
        except BadInput:
            continue  # reported by the call above
        if (found.digest, found.identity) != (entry.digest, entry.identity):
            report.problems.append(f"{input_path}: is not what {path} was made from ({role})")
