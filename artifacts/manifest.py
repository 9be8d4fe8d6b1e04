"""`manifest.json`: what an artifact is, what it was made from, and the hash of every byte in it."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from artifacts.digest import sha256_file, sha256_json
from artifacts.errors import BadInput
from artifacts.paths import is_inside
from artifacts.validation import file_sentences

MANIFEST = "manifest.json"
LOGS = "logs/"
"""Files under this folder (timings, curves) are hashed but do not take part in the content digest,
so that two runs that agree in every result agree in their digest."""

Kind = Literal[
    "corpus",
    "checkpoint",
    "hf-model",
    "adapter",
    "eval-report",
    "decision",
    "onnx-bundle",
    "proof",
    "release",
]


Digest = Annotated[str, Field(pattern=r"^[0-9A-Za-z]+$")]
"""Hex digits. It becomes a directory's name, hence nothing that could lead elsewhere."""


class FileEntry(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(extra="forbid")
    path: str = Field(description="POSIX path relative to the artifact's directory")
    size: int = Field(description="bytes")
    sha256: str

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        if not is_inside(value):
            raise ValueError("must be a relative path inside the artifact")
        return value


class InputEntry(BaseModel):
    """One artifact this one was made from."""

    model_config = ConfigDict(extra="forbid")
    kind: Kind
    identity: Digest
    digest: Digest


class SourceEntry(BaseModel):
    """One file from outside the store that went in."""

    model_config = ConfigDict(extra="forbid")
    path: str = Field(description="as the config or the file system names it")
    size: int = Field(description="bytes")
    sha256: str


class Manifest(BaseModel):
    """The record that makes a directory an artifact."""

    model_config = ConfigDict(extra="forbid")
    format: Literal[1] = 1
    kind: Kind
    stage: str
    code_version: int
    identity: Digest = Field(description="digest of kind, config, inputs, sources and code version")
    digest: Digest = Field(description="digest of the files, those under logs/ left out")
    files: list[FileEntry]
    inputs: dict[str, InputEntry]
    sources: list[SourceEntry]
    config: dict[str, Any]
    seeds: dict[str, int]
    packages: dict[str, str]
    host: dict[str, str]
    started: str
    finished: str
    headline: dict[str, Any]
    seal: Digest | None = Field(
        default=None,
        description="sha256 of all the above; `write_manifest` sets it, old ones have none",
    )


def identity_of(
    kind: str,
    code_version: int,
    config: dict[str, Any],
    inputs: dict[str, str],
    sources: list[SourceEntry],
) -> str:
    """What the work is, known before it is done.

    `inputs` maps each role to the input's content digest.
    """
    return sha256_json(
        {
            "kind": kind,
            "code_version": code_version,
            "config": config,
            "inputs": inputs,
            "sources": [entry.sha256 for entry in sources],
        }
    )


def content_digest(kind: str, files: list[FileEntry]) -> str:
    """What the result is: its kind and every file outside logs/."""
    payload = [[f.path, f.size, f.sha256] for f in files if not f.path.startswith(LOGS)]
    return sha256_json([kind, sorted(payload)])


def list_files(directory: Path) -> list[FileEntry]:
    """Every file below `directory` except the manifest, sorted by path.

    Raises BadInput for a link or special file: an artifact holds plain files only.
    """
    entries = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BadInput(f"{path}: an artifact may hold plain files only")
        if path.is_file() and relative != MANIFEST:
            entries.append(
                FileEntry(path=relative, size=path.stat().st_size, sha256=sha256_file(path))
            )
    return entries


def read_manifest(directory: Path) -> Manifest:
    """Read and check an artifact's manifest.

    Raises BadInput if there is none, or it is not whole, or one of its paths leaves the directory.
    """
    path = directory / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{directory}: is no artifact, it has no {MANIFEST}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise BadInput(*file_sentences(error, path)) from None


def problems_with_files(directory: Path, manifest: Manifest, *, content: bool = True) -> list[str]:
    """A sentence for every file that is missing, cut, changed or foreign; empty if all is well.

    With `content=False` only presence and sizes are compared.
    """
    problems = []
    root = directory.resolve()
    for entry in manifest.files:
        path = directory / entry.path
        if path.is_symlink() or not path.resolve().is_relative_to(root):
            problems.append(f"{path}: leaves the artifact's directory")
        elif not path.is_file():
            problems.append(f"{path}: is missing")
        elif (size := path.stat().st_size) != entry.size:
            problems.append(f"{path}: has {size} bytes, the manifest says {entry.size}")
        elif content and sha256_file(path) != entry.sha256:
            problems.append(f"{path}: has changed, its sha256 is not the manifest's")
    known = {entry.path for entry in manifest.files}
    for found in sorted(directory.rglob("*")):
        relative = found.relative_to(directory).as_posix()
        if (found.is_file() or found.is_symlink()) and relative not in known | {MANIFEST}:
            problems.append(f"{found}: is not in the manifest")
    if content_digest(manifest.kind, manifest.files) != manifest.digest:
        problems.append(f"{directory / MANIFEST}: its digest does not follow from its files")
    if manifest.seal not in (None, _seal(manifest)):
        problems.append(f"{directory / MANIFEST}: has changed, its seal is not that of its content")
    return problems


def manifest_seconds(manifest: Manifest) -> float:
    """How long the work took, to the second; of work that was resumed, the last part."""
    begin, end = map(datetime.fromisoformat, (manifest.started, manifest.finished))
    return (end - begin).total_seconds()


def write_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Write `manifest.json` into `directory`; returns it as it is there, sealed."""
    sealed = manifest.model_copy(update={"seal": _seal(manifest)})
    text = json.dumps(sealed.model_dump(), indent=1, ensure_ascii=False, allow_nan=False)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return sealed


def _seal(manifest: Manifest) -> str:
    """What no file's hash covers is covered by this: figures, seeds, versions, dates."""
    try:
        return sha256_json(manifest.model_dump(exclude={"seal"}))
    except ValueError:  # a number that JSON cannot carry: never sealed
        return ""
