"""The decision artifact: whether a model may be released, and every number that says why."""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.errors import BadInput
from artifacts.eval_report import ScoredModel
from artifacts.validation import file_sentences

DECISION = "decision.json"
NOT_JUDGED = "not judged: no release stands there yet"
"""What a decision shows of a rule that had no baseline."""

Outcome = Literal["approved", "rejected"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class JudgedReport(_Model):
    """One eval-report that took part, and the model it is about."""

    report_digest: str
    report_identity: str
    model: ScoredModel


class RuleResult(_Model):
    """One rule applied. Scores and differences are shares of items (0.01 is one point)."""

    rule: Literal[
        "floor", "gain_over_base", "no_regression", "gain_on_any", "no_loss", "same_choices"
    ]
    task: str
    """The task, or all tasks that the rule looks at."""
    passed: bool
    judged: bool = True
    """False where there was nothing to compare with, and the rule passed for that alone."""
    reason: str
    """One sentence with the numbers that decided."""
    candidate: float
    """Micro accuracy of the candidate; for same_choices the share of items chosen alike."""
    other: float | None = None
    """Micro accuracy of the model it is compared with."""
    difference: float | None = None
    """candidate - other, on the same items."""
    standard_error: float | None = None
    """Of the difference, or of the candidate's score for a floor; clustered where items are."""
    bound: float | None = None
    """One-sided lower confidence bound on the difference, or on the score for a floor."""
    threshold: float
    """What the bound must reach: the floor, the gain asked for, or minus the margin."""
    confidence: float
    items: int = Field(gt=0)
    clusters: int = Field(gt=0)
    """Groups of items that stand or fall together; equal to `items` if items are independent."""
    wins: int | None = None
    """Items only the candidate has right."""
    losses: int | None = None
    """Items only the other has right."""
    mcnemar_p: float | None = None
    """Exact two-sided McNemar p-value of wins against losses, items taken as independent."""
    notes: list[str] = []
    """What a reader must know to trust the numbers, such as a margin that lies within the noise."""


class Decision(_Model):
    """`decision.json`."""

    format: Literal[1] = 1
    outcome: Outcome
    candidate: JudgedReport
    base: JudgedReport | None
    baseline: JudgedReport | None
    rules: list[RuleResult] = Field(min_length=1)


def write_decision(directory: Path, decision: Decision) -> None:
    """Write `decision.json`. Raises ValueError for NaN."""
    text = json.dumps(
        decision.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False
    )
    (directory / DECISION).write_text(text + "\n", encoding="utf-8")


def read_decision(directory: Path) -> Decision:
    """Read `decision.json`. Raises BadInput naming the file and the field."""
    path = directory / DECISION
    try:
        return Decision.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise BadInput(*file_sentences(error, path)) from None
