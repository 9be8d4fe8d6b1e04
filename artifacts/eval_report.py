"""The eval-report artifact: `report.json` (conditions and scores) and `items.jsonl` (every answer).

Scores of two models are comparable only under equal conditions and on equal items; both are here,
so that whoever compares can check it and can pair item with item.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.errors import BadInput
from artifacts.validation import file_sentences

REPORT = "report.json"
ITEMS = "items.jsonl"
PART = "@"
"""Stands between a group's title and the part of its tasks that are scored together."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ScoredModel(_Model):
    """What was scored."""

    kind: str
    """hf-model, checkpoint or onnx-bundle."""
    identity: str
    digest: str
    adapter: str | None = None
    """Digest of the adapter that was added to the model without merging."""


class Conditions(_Model):
    """How it was scored. Reports are alike only if these are equal, but for the tokenizer's hash,
    and for max_length where answers are only compared (what it cuts there stands in the task)."""

    backend: str
    """mindspore or onnxruntime."""
    dtype: str
    """Element type of the computation."""
    sampling: dict[str, Any]
    """The sampling profile in full."""
    sampling_hash: str
    """sha256 of the sampling profile."""
    tokenizer_hash: str
    """sha256 of tokenizer.json."""
    lm_eval: str
    """Version of lm-eval."""
    chat_template: str | None = None
    """sha256 of the chat template if prompts were wrapped in it."""
    bos: str | None = None
    """The token put before every prompt, if any."""
    max_length: int = Field(gt=0)
    """Longest prompt and answer together, tokens."""


class Score(_Model):
    """Accuracy on some items."""

    n: int = Field(ge=0)
    """Number of items."""
    correct: int = Field(ge=0)
    acc: float
    """correct / n, or the metric's mean."""
    stderr: float | None
    """Standard error of `acc`; null when one item or one cluster leaves it undefined."""
    category: str | None = None
    """The group the subject belongs to, in a subject's score."""
    macro: float | None = None
    """Unweighted mean over the group's subjects, in a group's score."""
    macro_stderr: float | None = None


class Bin(_Model):
    """Items whose chosen answer got a probability in one tenth of the range."""

    n: int = Field(gt=0)
    confidence: float
    """Mean probability of the chosen answer, among the choices alone."""
    acc: float


class Calibration(_Model):
    """Whether the model is right as often as it is sure: probabilities are the softmax of the
    choices' log-likelihoods."""

    ece: float
    """Expected calibration error: mean over items of |confidence - accuracy| of their bin (Guo et
    al. 2017, arXiv:1706.04599), ten bins of equal width."""
    brier: float
    """Mean squared distance of the probabilities from the right answer (Brier 1950), 0 to 2."""
    bins: list[Bin]


class TaskScores(_Model):
    """One task: a suite of subjects, asked in one form; one of lm-eval's; or held-out text."""

    suite: str
    """mmlu, ceval or cmmlu; lm-eval's name; or text."""
    form: str
    """letter (the answer's letter is scored), continuation (the answer's text is scored), or the
    kinds of lm-eval's requests."""
    language: str
    """en or zh; empty if unknown."""
    version: str
    """Version of the task's definition."""
    num_fewshot: int = Field(ge=0)
    """Worked examples before each question."""
    prompt_hash: str
    """sha256 over every prompt and its choices, in order."""
    metric: str = "acc"
    """acc: the share of right answers; else what lm-eval calls the task's metric, or bits_per_byte,
    where less is better."""
    aggregate: bool = False
    """Whether the score is lm-eval's own figure over all items at once (such as BLEU, or a
    perplexity): no item has a value of its own, and more need not be better."""
    part_of: str | None = None
    """The title of the group whose tasks have different metrics, if these are some of them."""
    chance: float
    """Accuracy expected from guessing; 0 where nothing can be guessed."""
    items: int = Field(ge=0)
    correct: int = Field(ge=0)
    micro: float
    """The metric over all items."""
    micro_stderr: float | None
    macro: float
    """Unweighted mean over subjects."""
    macro_stderr: float | None
    clusters: int | None = None
    """Number of groups of items that stand or fall together; null when items are independent."""
    subjects: dict[str, Score]
    groups: dict[str, Score]
    """By category of subject."""
    answer_counts: dict[str, int]
    """How often the model chose A, B, C, D: a constant answer is visible here."""
    gold_counts: dict[str, int] = {}
    """How often each letter is right."""
    calibration: Calibration | None = None
    fewshot: dict[str, list[str]] = {}
    """Subject -> ids of its worked examples, in their order."""
    truncated_items: int = 0
    """Items from whose prompt few-shot examples were dropped, to fit the model."""
    truncated_examples: int = 0
    """Number of few-shot examples dropped in all."""
    left_out_items: int = 0
    """Questions not asked, because they are too long for the model even without examples."""
    sampling_used: list[str] = []
    """The sampling parameters that took part in the score; likelihood scoring uses none."""

    @property
    def is_share(self) -> bool:
        """Whether the metric is a share of the questions, to be shown in percent."""
        return not self.aggregate and any(
            part in self.metric for part in ("acc", "exact_match", "em", "f1", "pass")
        )

    @property
    def by_item(self) -> bool:
        """Whether items have values of their own of which more is better, as rules ask for."""
        return not self.aggregate and self.metric != "bits_per_byte"


class EvalReport(_Model):
    """`report.json`."""

    format: Literal[1] = 1
    model: ScoredModel
    conditions: Conditions
    tasks: dict[str, TaskScores]


class Item(_Model):
    """One line of `items.jsonl`: one question answered."""

    task: str
    subject: str
    id: str
    """The same for the same question in every report; unique within a task."""
    gold: int
    """Index of the right choice."""
    choice: int
    """Index of the model's choice: the highest log-likelihood, the first of equals; -1 where there
    are no choices, as for `gold`."""
    correct: bool
    loglikelihoods: list[float]
    """Natural log-likelihood of each choice; empty for an answer that was written."""
    score: float | None = None
    """The item's value in the task's metric, where it is not simply right or wrong."""
    weight: float | None = None
    """What it counts in the task's average (bytes of a text); null counts 1."""
    answer: str | None = None
    """The text that was written."""
    cluster: str | None = None
    """Items with the same cluster test the same fact."""


def value_of(item: Item) -> float:
    """What the item is worth in its task's metric: 1 or 0 for right or wrong, or its score."""
    return float(item.correct) if item.score is None else item.score


def write_report(directory: Path, report: EvalReport, items: Iterable[Item]) -> None:
    """Write both files; the same report gives the same bytes. Raises ValueError for NaN."""
    text = json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False)
    (directory / REPORT).write_text(text + "\n", encoding="utf-8")
    with (directory / ITEMS).open("w", encoding="utf-8", newline="\n") as file:
        for item in items:
            line = json.dumps(item.model_dump(mode="json"), ensure_ascii=False, allow_nan=False)
            file.write(line + "\n")


def read_report(directory: Path) -> EvalReport:
    """Read `report.json`. Raises BadInput naming the file and the field."""
    path = directory / REPORT
    try:
        return EvalReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise BadInput(*file_sentences(error, path)) from None


def read_items(directory: Path) -> list[Item]:
    """Read `items.jsonl`. Raises BadInput naming the line, also for an item that stands twice."""
    path = directory / ITEMS
    items: list[Item] = []
    seen: set[tuple[str, str]] = set()
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    item = Item.model_validate_json(line)
                except ValidationError as error:
                    raise BadInput(*file_sentences(error, f"{path}:{number}")) from None
                if (item.task, item.id) in seen:
                    raise BadInput(f"{path}:{number}: item {item.id} of {item.task} stands twice")
                seen.add((item.task, item.id))
                items.append(item)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: is not UTF-8") from None
    return items
