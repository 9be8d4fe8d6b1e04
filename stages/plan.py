"""A request made exact: config checked, inputs read, identity known. Quick, and runs no stage."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from artifacts.digest import sha256_file
from artifacts.errors import BadInput, MindCycleError
from artifacts.manifest import (
    InputEntry,
    Manifest,
    SourceEntry,
    identity_of,
    problems_with_files,
    read_manifest,
)
from artifacts.store import artifact_path, lock_path, work_path
from artifacts.validation import sentences, shown, unfit
from stages.spec import Request, StageConfig, StageSpec


@dataclass(frozen=True)
class Planned:
    """A stage's work, before it is done."""

    spec: StageSpec
    config: StageConfig
    inputs: dict[str, Path]
    input_entries: dict[str, InputEntry]
    sources: list[SourceEntry]
    identity: str
    final: Path
    work: Path
    lock: Path

    def finished(self) -> Manifest | None:
        """The manifest if the work is done already and every byte of it is still right.

        Raises BadInput, naming the file, if it was done but its files have changed since.
        """
        if not self.final.exists():
            return None
        again = f"remove {self.final} to have it made again"
        try:
            manifest = read_manifest(self.final)
        except BadInput as error:
            raise BadInput(*error.problems, again) from None
        problems = problems_with_files(self.final, manifest)
        if manifest.identity != self.identity:
            problems.append(f"{self.final}: its manifest carries another identity")
        if problems:
            raise BadInput(*problems, again)
        return manifest


def plan(spec: StageSpec, request: Request, *, check_inputs: bool = True) -> Planned:
    """Check a request in full before any work.

    With `check_inputs` every byte of the inputs is compared with its manifest; a caller that has
    just done so may leave it out. Raises BadInput with all problems found.
    """
    try:
        config = spec.config.model_validate(request.config)
    except ValidationError as error:
        raise BadInput(*sentences(error, spec.name, request.config)) from None
    problems = [
        *unfit(config.model_dump(), spec.name),
        *unfit({"store": request.store, "inputs": request.inputs}, "request"),
    ]
    if problems:
        raise BadInput(*problems)
    if request.stage != spec.name:
        problems.append(f"request.stage: is {shown(request.stage)}; this is {spec.name}")
    entries: dict[str, InputEntry] = {}
    for role in request.inputs.keys() - spec.inputs.keys():
        problems.append(
            f"inputs.{role}: {spec.name} takes no such input, "
            f"only {', '.join(spec.inputs) or 'none'}"
        )
    for role, wanted in spec.inputs.items():
        if role not in request.inputs:
            if wanted.required:
                problems.append(
                    f"inputs.{role}: is missing, {spec.name} needs "
                    f"an artifact of kind {' or '.join(wanted.kinds)}"
                )
            continue
        path = Path(request.inputs[role])
        try:
            manifest = read_manifest(path)
        except BadInput as error:
            problems += [f"inputs.{role}: {problem}" for problem in error.problems]
            continue
        if manifest.kind not in wanted.kinds:
            problems.append(
                f"inputs.{role}: {path} is of kind {manifest.kind}, "
                f"{spec.name} needs {' or '.join(wanted.kinds)}"
            )
        if check_inputs:
            problems += problems_with_files(path, manifest)
        entries[role] = InputEntry(
            kind=manifest.kind, identity=manifest.identity, digest=manifest.digest
        )
    try:
        sources = [_source(path) for path in config.source_files()]
    except MindCycleError as error:
        problems += str(error).splitlines()
    if problems:
        raise BadInput(*problems)
    identity = identity_of(
        spec.makes,
        spec.code_version,
        {"stage": spec.name, **config.result_config()},
        {role: entry.digest for role, entry in entries.items()},
        sources,
    )
    store = Path(request.store).absolute()
    return Planned(
        spec=spec,
        config=config,
        inputs={role: Path(request.inputs[role]).absolute() for role in entries},
        input_entries=entries,
        sources=sources,
        identity=identity,
        final=artifact_path(store, spec.makes, identity),
        work=work_path(store, spec.makes, identity),
        lock=lock_path(store, spec.makes, identity),
    )


def _source(path: Path) -> SourceEntry:
    try:
        return SourceEntry(path=str(path), size=path.stat().st_size, sha256=sha256_file(path))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
