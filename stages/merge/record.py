"""`merge.json`: which adapters a model already contains, so that none goes in twice."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from artifacts.adapter import Adapter
from artifacts.errors import BadInput
from artifacts.validation import file_sentences
from stages.spec import when_set

RECORD = "merge.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Merge(_Model):
    """One adapter merged into one base."""

    base_digest: str
    base_identity: str
    adapter_digest: str
    adapter_identity: str
    adapter_tensors: str
    """sha256 of its tensors' file: the same tensors may be bound to several bases."""
    rank: int
    alpha: float
    scaling: float
    """alpha / rank, the factor on B @ A."""
    targets: list[str]
    modules: int
    """Linears that were changed."""
    max_abs_change: float
    """Largest change of a stored weight."""
    changed_share: float
    """Share of the targeted weights whose stored value changed: below fp32 small changes vanish.
    Of adapters that were merged together, this and the above are said of all."""
    weight: float = when_set(1.0)
    """Factor on this adapter's change."""
    forced: bool = when_set(False)
    """Whether the adapter says that it belongs to another base, or nothing of it."""


class MergeRecord(_Model):
    """All merges that led to a model, the oldest first."""

    format: Literal[1] = 1
    merges: list[Merge]
    proof: dict[str, Any]
    """Logits of the last merge against base and adapter kept apart."""


def read_record(directory: Path) -> MergeRecord | None:
    """The record of a model directory, None if nothing was merged. Raises BadInput."""
    path = directory / RECORD
    if not path.is_file():
        return None
    try:
        return MergeRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadInput(*file_sentences(error, path)) from None


def check_not_merged(record: MergeRecord | None, adapter: Adapter, tensors: str) -> None:
    """Raise BadInput if the adapter whose tensors' file has this sha256 is in the model already."""
    if record and any(merge.adapter_tensors == tensors for merge in record.merges):
        raise BadInput(
            f"{adapter.where}: is merged into this model already, says its {RECORD}; "
            "merge it into its base instead"
        )
