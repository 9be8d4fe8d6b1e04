"""What a release is made of, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from artifacts.decision import Decision, read_decision
from artifacts.errors import BadInput
from artifacts.eval_report import EvalReport, read_report
from artifacts.json_files import read_object
from artifacts.manifest import Manifest, read_manifest
from artifacts.onnx_kinds import Precision
from artifacts.validation import file_sentences


class Agreement(BaseModel):
    """The proof that a bundle gives its model's logits."""

    passed: Any = None
    """Nothing but true will do."""
    precision: Precision
    cases: list[Any]
    longest: int
    max_abs: float
    max_scaled: float
    threshold: float


@dataclass(frozen=True)
class Parts:
    """The seven artifacts and what is in them."""

    paths: Mapping[str, Path]
    manifests: Mapping[str, Manifest]
    decision: Decision
    """About the model."""
    bundle_decision: Decision
    """About the bundle beside the model."""
    candidate: EvalReport
    """Scores of the model, over MindSpore."""
    bundle_scores: EvalReport
    """Scores of the bundle, over onnxruntime."""
    agreement: Agreement
    """What is needed of the proof."""


def read_parts(inputs: Mapping[str, Path]) -> Parts:
    """Read everything. Raises BadInput naming the file and field that is not right."""
    return Parts(
        paths=inputs,
        manifests={role: read_manifest(path) for role, path in inputs.items()},
        decision=read_decision(inputs["decision"]),
        bundle_decision=read_decision(inputs["bundle_decision"]),
        candidate=read_report(inputs["candidate"]),
        bundle_scores=read_report(inputs["bundle_scores"]),
        agreement=_read_agreement(inputs["proof"] / "agreement.json"),
    )


def _read_agreement(path: Path) -> Agreement:
    try:
        return Agreement.model_validate(read_object(path))
    except ValidationError as error:
        raise BadInput(*file_sentences(error, path)) from None
