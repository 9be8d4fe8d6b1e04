"""The store: a directory with one folder per kind and one artifact per identity below it."""

import os
from pathlib import Path

from artifacts.errors import BadInput
from artifacts.manifest import MANIFEST, Manifest, read_manifest
from artifacts.validation import plain

SHORT = 16
"""Hex digits of the identity that name an artifact's directory (64 bits)."""


def artifact_path(store: Path, kind: str, identity: str) -> Path:
    """Where the artifact of this kind and identity stands, or would stand."""
    return store / kind / identity[:SHORT]


def work_path(store: Path, kind: str, identity: str) -> Path:
    """Where it is written until it is whole. The same after a crash, so that work can go on."""
    return store / kind / f".{identity[:SHORT]}.partial"


def fetch_path(store: Path, kind: str, identity: str) -> Path:
    """Where it is gathered when it comes from another store."""
    return store / kind / f".{identity[:SHORT]}.fetched"


def lock_path(store: Path, kind: str, identity: str) -> Path:
    """The lock its writer holds."""
    return store / kind / f".{identity[:SHORT]}.lock"


def prepare_store(store: Path) -> None:
    """Create the store. Raises BadInput if it cannot be written."""
    try:
        store.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise BadInput(f"store: {store} is a file; a directory would be right") from None
    except OSError as error:
        raise BadInput(f"store: {store} cannot be created: {error.strerror}") from None
    if not os.access(store, os.W_OK | os.X_OK):
        raise BadInput(f"store: {store} cannot be written")


def check_store(store: Path) -> None:
    """Raise BadInput if there is no store to look into."""
    if not store.is_dir():
        raise BadInput(f"store: {store} is no directory")


def list_artifacts(store: Path, problems: list[str] | None = None) -> list[tuple[Path, Manifest]]:
    """Every artifact in the store, oldest first.

    One whose manifest cannot be read gets a sentence in `problems`, or else raises BadInput.
    """
    found = []
    for path in sorted(store.glob(f"*/*/{MANIFEST}")):
        if path.parent.name.startswith("."):  # not whole yet
            continue
        try:
            found.append((path.parent, read_manifest(path.parent)))
        except BadInput as error:
            if problems is None:
                raise
            problems += error.problems
    return sorted(found, key=lambda item: (item[1].finished, str(item[0])))


def find_artifact(store: Path, reference: str) -> Path:
    """An artifact by its path, or by the first digits of its identity or digest (4 at least).

    Raises BadInput when nothing, or more than one, matches.
    """
    path = Path(reference)
    if reference and (path / MANIFEST).is_file():
        # Its identity and kind are read off the path, which `.` or a bare name would not say.
        return path.resolve() if {path.name, path.parent.name} & {"", ".."} else path
    problems: list[str] = []
    matches = [
        path
        for path, manifest in list_artifacts(store, problems)
        if len(reference) >= 4
        and (manifest.identity.startswith(reference) or manifest.digest.startswith(reference))
    ]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        if Path(reference).is_dir():
            read_manifest(Path(reference))  # says what it lacks
        raise BadInput(
            f"{plain(reference)}: is neither an artifact's directory nor the beginning of "
            f"(4 digits or more) an identity or digest in {store}",
            *problems,
        )
    raise BadInput(f"{reference}: fits {len(matches)} artifacts: {', '.join(map(str, matches))}")
