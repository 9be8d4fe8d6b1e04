"""Rolling checkpoints: written whole or not at all, verified before use, the last few kept.

Each is a directory `step-00000100` with `model.safetensors` (Hugging Face names and layout),
`optimizer.safetensors` (AdamW's running means and squares, under the same names) and `state.json`
(where the run stands, and the size and sha256 of the other two). Nothing in it depends on how many
processes wrote it.
"""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.digest import sha256_file
from artifacts.errors import BadInput
from artifacts.weights import SINGLE, SafetensorsFile, lay_out_safetensors, write_safetensors
from artifacts.writing import publish
from stages.engine.mesh import Piece
from stages.pretrain.config import STATE

CHECKPOINTS = "checkpoints"
OPTIMIZER = "optimizer.safetensors"
NAME = re.compile(r"step-(\d{8,})")
MEAN, SQUARE = "exp_avg.", "exp_avg_sq."
METADATA = {"format": "pt"}


class DataPosition(BaseModel):
    """The next sample; the order itself follows from seed and epoch."""

    model_config = ConfigDict(extra="forbid")
    seed: int
    epoch: int
    index: int = Field(description="samples of this epoch taken already")
    corpus: str | None = Field(
        default=None, description="content digest; a finished checkpoint's manifest has it instead"
    )


class FileCheck(BaseModel):
    """What a file must be."""

    model_config = ConfigDict(extra="forbid")
    size: int
    sha256: str


class ScaleState(BaseModel):
    """A loss scale."""

    model_config = ConfigDict(extra="forbid")
    value: float
    good_steps: int = Field(description="without an overflow, since the value last changed")


class State(BaseModel):
    """Where a run stands. Everything that weights and optimiser do not say."""

    model_config = ConfigDict(extra="forbid")
    format: Literal[1] = 1
    step: int = Field(description="optimiser steps done")
    updates: int = Field(description="steps that changed the weights; the rest was not finite")
    skipped_in_a_row: int = Field(description="steps that were not finite, up to this one")
    tokens: int = Field(description="labelled tokens seen")
    recent_losses: list[float] = Field(description="of the last steps, newest last")
    data: DataPosition
    rng: dict[str, Any] = Field(description="what is drawn after the start: nothing but the order")
    loss_scale: ScaleState | None = Field(default=None, description="in half precision")
    files: dict[str, FileCheck] = {}


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    directory: Path
    state: State

    def tensors(self) -> dict[str, np.ndarray]:
        """The weights by Hugging Face name, as pages of the file: read is what is looked at."""
        file = SafetensorsFile(self.directory / SINGLE)
        return {name: file.read(name) for name in file.names()}

    def moments(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """AdamW's running means and squares by Hugging Face name, likewise."""
        file = SafetensorsFile(self.directory / OPTIMIZER)
        means = {n.removeprefix(MEAN): n for n in file.names() if n.startswith(MEAN)}
        squares = {n.removeprefix(SQUARE): n for n in file.names() if n.startswith(SQUARE)}
        return (
            {name: file.read(stored) for name, stored in means.items()},
            {name: file.read(stored) for name, stored in squares.items()},
        )


class Rolling:
    """The checkpoints of one run, in one directory that may hold other things too."""

    def __init__(self, directory: Path, keep: int):
        self.directory, self.keep = directory, keep

    def save(
        self,
        state: State,
        tensors: Mapping[str, np.ndarray],
        means: Mapping[str, np.ndarray],
        squares: Mapping[str, np.ndarray],
    ) -> Checkpoint:
        """Write one, then remove those that are too many. A disk that is full keeps no half."""
        temporary = self._empty(state.step)
        try:
            _fill(temporary, tensors, means, squares)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return self.finish(state)

    def begin(self, step: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make room for a checkpoint that several processes fill with `part`, then `finish`.

        Raises OSError, and leaves nothing, if the disk has not the room.
        """
        temporary = self._empty(step)
        float32 = np.dtype(np.float32)
        weights = [(name, shape, float32) for name, shape in shapes.items()]
        moments = [
            (prefix + name, shape, float32)
            for prefix in (MEAN, SQUARE)
            for name, shape in shapes.items()
        ]
        try:
            lay_out_safetensors(temporary / SINGLE, weights, METADATA)
            lay_out_safetensors(temporary / OPTIMIZER, moments, METADATA)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def part(
        self,
        step: int,
        weights: Iterable[tuple[Piece, np.ndarray]],
        means: Iterable[tuple[Piece, np.ndarray]],
        squares: Iterable[tuple[Piece, np.ndarray]],
    ) -> None:
        """Write this process's pieces of the whole model into what another has begun."""
        temporary = self._temporary(step)
        file = SafetensorsFile(temporary / SINGLE)
        for piece, value in weights:
            file.fill(piece.name, piece.index, value)
        file = SafetensorsFile(temporary / OPTIMIZER)
        for prefix, pieces in ((MEAN, means), (SQUARE, squares)):
            for piece, value in pieces:
                file.fill(prefix + piece.name, piece.index, value)

    def finish(self, state: State) -> Checkpoint:
        """Give what has been written its state and its name, then remove those too many."""
        temporary = self._temporary(state.step)
        final = self.directory / f"step-{state.step:08}"
        try:
            state = _sealed(temporary, state)
            if final.exists():  # a broken one that a resumed run has come to again
                shutil.rmtree(final)
            publish(temporary, final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._prune(state.step)
        return Checkpoint(final, state)

    def _temporary(self, step: int) -> Path:
        return self.directory / f".step-{step:08}.tmp"

    def _empty(self, step: int) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary(step)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        return temporary

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole one, and a sentence for each newer one that is not whole."""
        complaints: list[str] = []
        for _, path in reversed(self._numbered()):
            try:
                return _verified(path), complaints
            except _NotWhole as error:
                complaints.append(f"{path}: {error}; the one before it is used")
        return None, complaints

    @staticmethod
    def whole(path: Path) -> Checkpoint:
        """The checkpoint in this directory. Raises BadInput if it is not whole."""
        try:
            return _verified(path)
        except _NotWhole as error:
            raise BadInput(f"{path}: {error}; a whole rolling checkpoint would be right") from None

    def adopt(self, path: Path) -> Checkpoint:
        """Take over another run's checkpoint as a copy. Raises BadInput if it is not whole."""
        self.directory.mkdir(parents=True, exist_ok=True)
        found = self.whole(path)
        temporary = self._temporary(found.state.step)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(path, temporary)
        publish(temporary, self.directory / path.name)
        return Checkpoint(self.directory / path.name, found.state)

    def clean(self, checkpoint: Checkpoint | None) -> None:
        """Remove what a killed run left unfinished, and what is newer than `checkpoint`."""
        for path in self.directory.glob(".step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)
        for step, path in self._numbered():
            if checkpoint is None or step > checkpoint.state.step:
                shutil.rmtree(path)

    def _prune(self, newest: int) -> None:
        mine = [(step, path) for step, path in self._numbered() if step <= newest]
        for _, path in mine[: -self.keep]:
            shutil.rmtree(path)

    def _numbered(self) -> list[tuple[int, Path]]:
        """Those that look like ours, by number; a name alone is not enough to be deleted."""
        if not self.directory.is_dir():
            return []
        found = [
            (int(match.group(1)), path)
            for path in self.directory.iterdir()
            if (match := NAME.fullmatch(path.name))
            and path.is_dir()
            and not path.is_symlink()
            and _is_ours({entry.name for entry in path.iterdir()})
        ]
        return sorted(found)


def _fill(
    directory: Path,
    tensors: Mapping[str, np.ndarray],
    means: Mapping[str, np.ndarray],
    squares: Mapping[str, np.ndarray],
) -> None:
    """Write a checkpoint's tensors."""
    _write(directory / SINGLE, tensors)
    moments = {MEAN + n: v for n, v in means.items()} | {SQUARE + n: v for n, v in squares.items()}
    _write(directory / OPTIMIZER, moments)


def _sealed(directory: Path, state: State) -> State:
    """Write the state of a checkpoint's tensors, with their sizes and hashes."""
    files = {name: directory / name for name in (SINGLE, OPTIMIZER)}
    checks = {
        name: FileCheck(size=path.stat().st_size, sha256=sha256_file(path))
        for name, path in files.items()
    }
    state = state.model_copy(update={"files": checks})
    write_state(directory / STATE, state)
    return state


def _is_ours(names: set[str]) -> bool:
    return bool(names) and names <= {SINGLE, OPTIMIZER, STATE}


class _NotWhole(Exception):
    """Says what is wrong with a checkpoint."""


def _verified(path: Path) -> Checkpoint:
    try:
        state = State.model_validate_json((path / STATE).read_bytes())
    except OSError as error:
        raise _NotWhole(f"{STATE} cannot be read ({error.strerror})") from None
    except ValidationError:
        raise _NotWhole(f"{STATE} is damaged") from None
    if path.name != f"step-{state.step:08}" or set(state.files) != {SINGLE, OPTIMIZER}:
        raise _NotWhole(f"{STATE} is of another checkpoint")
    _compare(state, {name: path / name for name in state.files})
    return Checkpoint(path, state)


def _compare(state: State, files: Mapping[str, Path]) -> None:
    for name, check in state.files.items():
        file = files[name]
        if not file.is_file():
            raise _NotWhole(f"{name} is missing")
        if file.stat().st_size != check.size:
            raise _NotWhole(f"{name} has {file.stat().st_size} bytes instead of {check.size}")
        if sha256_file(file) != check.sha256:
            raise _NotWhole(f"{name} has changed")


def whole_files(state_file: Path, files: Mapping[str, Path]) -> bool:
    """Whether `files`, by their names in a checkpoint, are what its `state.json` says."""
    try:
        state = read_state(state_file)
        if state.files.keys() != files.keys():
            return False
        _compare(state, files)
    except (OSError, ValueError, _NotWhole):
        return False
    return True


def _write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    entries = [(name, value.shape, value.dtype) for name, value in tensors.items()]
    write_safetensors(path, entries, tensors.values(), METADATA)


def write_state(path: Path, state: State) -> None:
    """Write a `state.json`."""
    text = state.model_dump_json(indent=1, exclude_none=True)
    path.write_text(text + "\n", encoding="utf-8")


def read_state(path: Path) -> State:
    """A `state.json`, as it stands in a finished checkpoint's `training/` too."""
    return State.model_validate(json.loads(path.read_text(encoding="utf-8")))
