"""Eval-reports written by hand, as artifacts in a store, for tests of the gate."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.eval_report import EvalReport, Item, write_report
from tests.tiny_models import as_artifact

CONDITIONS: dict[str, Any] = {
    "backend": "mindspore",
    "dtype": "float32",
    "sampling": {"temperature": 0.1, "top_p": 0.95},
    "sampling_hash": "s" * 64,
    "tokenizer_hash": "t" * 64,
    "lm_eval": "0.4.13",
    "chat_template": None,
    "bos": None,
    "max_length": 64,
}


def report_content(
    answers: Mapping[str, Sequence[bool]],
    *,
    clusters: Mapping[str, Sequence[str]] | None = None,
    model: str = "a",
    chance: float = 0.25,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`report.json` and the lines of `items.jsonl` for right (True) and wrong answers by task."""
    tasks, items = {}, []
    for task, right in answers.items():
        groups = (clusters or {}).get(task)
        share = sum(right) / len(right)
        tasks[task] = {
            "suite": "mmlu",
            "form": "continuation",
            "language": "en",
            "version": "1.0",
            "num_fewshot": 0,
            "prompt_hash": "p" * 64,
            "chance": chance,
            "items": len(right),
            "correct": sum(right),
            "micro": share,
            "micro_stderr": None,
            "macro": share,
            "macro_stderr": None,
            "subjects": {},
            "groups": {},
            "answer_counts": {},
        }
        items += [
            {
                "task": task,
                "subject": "all",
                "id": f"item-{i:04}",
                "gold": 0,
                "choice": 0 if good else 1,
                "correct": bool(good),
                "loglikelihoods": [-1.0, -2.0],
                "cluster": groups[i] if groups else None,
            }
            for i, good in enumerate(right)
        ]
    scored = {"kind": "hf-model", "identity": model * 64, "digest": model * 64}
    report = {"model": scored, "conditions": copy.deepcopy(CONDITIONS), "tasks": tasks}
    return report, items


def write_artifact(
    store: Path, content: tuple[dict[str, Any], list[dict[str, Any]]], identity: str
) -> Path:
    """The content as an eval-report artifact whose identity is one character, repeated."""
    report, items = content

    def fill(directory: Path) -> None:
        write_report(directory, EvalReport.model_validate(report), map(Item.model_validate, items))

    return as_artifact(store, "eval-report", fill, identity=identity * 64)
