"""Named channels of a store: which artifact `candidate`, `staging` or `production` stands for.

`<store>/channels/<name>.json` holds every move of the channel, who made it and why; the last one is
what stands. The file is replaced whole, so a reader sees the channel before or after a move, never
between. Nothing is ever taken out of the history: going back is a move as well.
"""

import json
import os
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.approval import now, user
from artifacts.claims import claims
from artifacts.errors import BadInput
from artifacts.manifest import Digest, Kind, Manifest, problems_with_files, read_manifest
from artifacts.store import SHORT, artifact_path
from artifacts.validation import file_sentences, shown
from artifacts.writing import exclusive, write_file_atomically

FOLDER = "channels"
Channel = Literal["candidate", "staging", "production"]
CHANNELS: tuple[Channel, ...] = get_args(Channel)
TAKES: dict[Channel, tuple[Kind, ...]] = {
    "candidate": ("release", "hf-model", "checkpoint", "onnx-bundle"),
    "staging": ("release",),
    "production": ("release",),
}
"""Only what the gate has approved goes beyond candidate: releases carry its decision."""


class Move(BaseModel):
    """One move of a channel to an artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: Kind
    identity: Digest
    digest: Digest
    who: str
    when: str
    """ISO 8601, UTC."""
    why: str
    decision: Digest | None = None
    """Digest of the gate's decision that a release was made from."""
    back: bool = False
    """Whether the channel went back to what stood before."""


class History(BaseModel):
    """A channel's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    channel: Channel
    moves: list[Move] = Field(min_length=1)


def channel_name(text: str) -> Channel:
    """`text` as a channel. Raises BadInput if there is none of that name."""
    for name in CHANNELS:
        if text == name:
            return name
    raise BadInput(f"channel: is {shown(text)}; {', '.join(CHANNELS)} would be right")


def history(store: Path, channel: Channel) -> list[Move]:
    """Every move, oldest first; empty if nothing was ever promoted. Raises BadInput."""
    path = _path(store, channel)
    if not path.is_file():
        return []
    try:
        return History.model_validate_json(path.read_bytes()).moves
    except ValidationError as error:
        raise BadInput(*file_sentences(error, path)) from None


def standing(store: Path, channel: Channel) -> Path | None:
    """Directory of the artifact that the channel stands for. Raises BadInput if it is gone."""
    moves = history(store, channel)
    if not moves:
        return None
    directory = artifact_path(store, moves[-1].kind, moves[-1].identity)
    _check_same(directory, read_manifest(directory), moves[-1], channel)
    return directory


def promote(
    store: Path, channel: Channel, directory: Path, why: str, who: str | None = None
) -> Move:
    """Move a channel to an artifact of this store. Raises BadInput if it may not stand there."""
    with claims(f"promote-{os.getpid()}") as using:
        using.add(directory)
        return _promote(store, channel, directory, why, who)


def _promote(store: Path, channel: Channel, directory: Path, why: str, who: str | None) -> Move:
    manifest = read_manifest(directory)
    problems = []
    if manifest.kind not in TAKES[channel]:
        kinds = " or ".join(TAKES[channel])
        problems.append(f"{directory}: is of kind {manifest.kind}; {channel} takes {kinds}")
    if artifact_path(store, manifest.kind, manifest.identity).resolve() != directory.resolve():
        problems.append(f"{directory}: stands in another store than {store}")
    problems += problems_with_files(directory, manifest)
    if problems:
        raise BadInput(*problems)
    decision = manifest.inputs.get("decision")
    move = Move(
        kind=manifest.kind,
        identity=manifest.identity,
        digest=manifest.digest,
        who=who or user(),
        when=now(),
        why=_reason(why),
        decision=decision.digest if decision else None,
    )
    with exclusive(store / f".{FOLDER}.lock"):
        moves = history(store, channel)
        if moves and moves[-1].digest == move.digest:
            raise BadInput(f"{directory}: is what {channel} stands for already")
        _write(store, channel, [*moves, move])
    return move


def roll_back(store: Path, channel: Channel, why: str, who: str | None = None) -> Move:
    """Move a channel to what stood there before what stands now. Twice goes two releases back.

    Raises BadInput if there is nothing before it, or if that is no longer whole or has been made
    again with other bytes.
    """
    _before(history(store, channel), channel)  # a refusal creates nothing, not even the lock
    with exclusive(store / f".{FOLDER}.lock"):
        moves = history(store, channel)
        before = _before(moves, channel)
        directory = artifact_path(store, before.kind, before.identity)
        manifest = read_manifest(directory)
        _check_same(directory, manifest, before, channel)
        problems = problems_with_files(directory, manifest)
        if problems:
            raise BadInput(*problems)
        about = {"who": who or user(), "when": now(), "why": _reason(why), "back": True}
        move = before.model_copy(update=about)
        _write(store, channel, [*moves, move])
    return move


def line_of(moves: list[Move]) -> list[Move]:
    """What stands last, before it what a move back leads to, and so on; oldest first."""
    line: list[Move] = []
    for move in moves:
        if not move.back:
            line.append(move)
        elif line:
            line.pop()
    return line


def _before(moves: list[Move], channel: Channel) -> Move:
    """What stood before what stands now; a move back takes the last one away."""
    line = line_of(moves)
    if len(line) < 2:
        raise BadInput(f"{channel}: nothing stood there before what stands there now")
    return line[-2]


def _check_same(directory: Path, found: Manifest, move: Move, channel: Channel) -> None:
    """Raise BadInput if the artifact was made again with other bytes since it was promoted."""
    if found.digest != move.digest:
        raise BadInput(
            f"{directory}: has the digest {found.digest[:SHORT]} and is not what {channel} was "
            f"moved to, which was {move.digest[:SHORT]}; it was made again since, promote it anew"
        )


def _reason(why: str) -> str:
    if not why.strip():
        raise BadInput("why: is empty; the reason is what the record is for")
    return why.strip()


def _write(store: Path, channel: Channel, moves: list[Move]) -> None:
    path = _path(store, channel)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = History(channel=channel, moves=moves).model_dump(mode="json")
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_file_atomically(path, text.encode())


def _path(store: Path, channel: Channel) -> Path:
    return store / FOLDER / f"{channel}.json"
