"""A person's yes or no to a decision of the gate: who, when and why, beside the store's artifacts.

`<store>/approvals/<decision's digest>.json`. It is bound to the decision by digest, so a decision
that is made anew from other scores needs another one.
"""

import getpass
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.errors import BadInput
from artifacts.manifest import Digest, Manifest
from artifacts.store import SHORT
from artifacts.validation import file_sentences
from artifacts.writing import exclusive, write_file_atomically

FOLDER = "approvals"


class Approval(BaseModel):
    """One answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    format: Literal[1] = 1
    decision: Digest
    """Digest of the decision."""
    approved: bool
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)
    when: str
    """ISO 8601, UTC."""


def approval_of(store: Path, decision: Manifest) -> Approval | None:
    """The answer given to this decision, if there is one. Raises BadInput if it is broken."""
    path = _path(store, decision)
    if not path.is_file():
        return None
    try:
        found = Approval.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadInput(*file_sentences(error, path)) from None
    if found.decision != decision.digest:
        raise BadInput(f"{path}: is about the decision {found.decision}, not {decision.digest}")
    return found


def give_approval(
    store: Path, decision: Manifest, approved: bool, why: str, who: str | None = None
) -> Approval:
    """Write the answer down. Raises BadInput if there is one already, or nothing to approve."""
    if decision.kind != "decision":
        raise BadInput(f"is of kind {decision.kind}; the gate's decision would be right")
    if decision.config.get("approval") is not True:
        raise BadInput("asks for no person's approval: gate.approval was not set when it was made")
    if decision.headline.get("outcome") != "approved":
        raise BadInput("the gate rejected this model; a person cannot approve it")
    if not why.strip():
        raise BadInput("why: is empty; the reason is what the record is for")
    with exclusive(store / f".{FOLDER}.lock"):
        if (given := approval_of(store, decision)) is not None:
            answer = "approved" if given.approved else "turned down"
            raise BadInput(f"was {answer} already by {given.who} at {given.when}: {given.why}")
        made = Approval(
            decision=decision.digest,
            approved=approved,
            who=who or user(),
            why=why.strip(),
            when=now(),
        )
        path = _path(store, decision)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(made.model_dump(), indent=1, ensure_ascii=False) + "\n"
        write_file_atomically(path, text.encode())
    return made


def user() -> str:
    """The name of who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this id
        return "unknown"


def now() -> str:
    """The time, ISO 8601 in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _path(store: Path, decision: Manifest) -> Path:
    return store / FOLDER / f"{decision.digest[:SHORT]}.json"
