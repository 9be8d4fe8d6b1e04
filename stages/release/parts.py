"""What a release is made of, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.decision import Decision, read_decision
from artifacts.eval_report import EvalReport, Item, read_items, read_report
from artifacts.manifest import Manifest, read_manifest
from artifacts.tokenizer_files import read_object


@dataclass(frozen=True)
class Parts:
    """The five artifacts and what is in them."""

    paths: Mapping[str, Path]
    manifests: Mapping[str, Manifest]
    decision: Decision
    candidate: EvalReport
    """Scores of the model, over MindSpore."""
    candidate_items: list[Item]
    bundle_scores: EvalReport
    """Scores of the bundle, over onnxruntime."""
    bundle_items: list[Item]
    agreement: dict[str, Any]
    """The bundle's `agreement.json`."""


def read_parts(inputs: Mapping[str, Path]) -> Parts:
    """Read everything. Raises BadInput naming the file and field that is not right."""
    return Parts(
        paths=inputs,
        manifests={role: read_manifest(path) for role, path in inputs.items()},
        decision=read_decision(inputs["decision"]),
        candidate=read_report(inputs["candidate"]),
        candidate_items=read_items(inputs["candidate"]),
        bundle_scores=read_report(inputs["bundle_scores"]),
        bundle_items=read_items(inputs["bundle_scores"]),
        agreement=read_object(inputs["bundle"] / "agreement.json"),
    )
