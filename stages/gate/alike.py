"""Are two eval-reports comparable? Every difference by name; a pair of scores under unlike
conditions says nothing about the models."""

import re
from collections.abc import Collection

from artifacts.eval_report import EvalReport, Item, TaskScores
from artifacts.wording import counted

CONDITIONS = {
    "backend": "backend kind",
    "dtype": "element type",
    "sampling_hash": "sampling profile",
    "chat_template": "chat template",
    "lm_eval": "lm-eval version",
}
ENGINE = ("backend", "dtype")
"""Conditions in which a bundle's report differs from its model's."""
DEFINITION = {
    "suite": "suite",
    "form": "form of the answers",
    "version": "task version",
    "num_fewshot": "few-shot count",
    "prompt_hash": "prompt hash",
    "metric": "metric",
}

BY_LENGTH = ("generate_until", "loglikelihood_rolling")
"""Forms in which the model's longest input decides: where a text ends, or is cut into windows."""


def condition_differences(
    ours: EvalReport, other: EvalReport, role: str, but: Collection[str] = ()
) -> list[str]:
    """A sentence for every condition that `other` (named `role`) does not share, `but` left out.

    The tokenizer may differ, since models with different ones may well be compared on the same
    prompts; with the same tokenizer the same token must come first.
    """
    a, b = ours.conditions, other.conditions
    found = [
        _differs(f"{what} ({name})", getattr(a, name), getattr(b, name), role)
        for name, what in CONDITIONS.items()
        if name not in but and getattr(a, name) != getattr(b, name)
    ]
    if a.tokenizer_hash == b.tokenizer_hash and a.bos != b.bos:
        found.append(_differs("first token (bos)", a.bos, b.bos, role))
    return found


def task_differences(
    task: str, ours: EvalReport, other: EvalReport, items: list[Item], others: list[Item], role: str
) -> list[str]:
    """A sentence for everything in which one task differs: its definition, and its items."""
    a, b = ours.tasks[task], other.tasks[task]
    found = [
        _differs(f"{task}: {what} ({name})", getattr(a, name), getattr(b, name), role)
        for name, what in DEFINITION.items()
        if getattr(a, name) != getattr(b, name)
    ]
    lengths = ours.conditions.max_length, other.conditions.max_length
    if lengths[0] != lengths[1] and any(form in a.form.split(", ") for form in BY_LENGTH):
        found.append(_differs(f"{task}: longest input in tokens (max_length)", *lengths, role))
    if _truncation(a) != _truncation(b):
        found.append(
            _differs(f"{task}: truncation (items, examples)", _truncation(a), _truncation(b), role)
        )
    left, right = {item.id: item for item in items}, {item.id: item for item in others}
    found += _only(task, "the candidate", sorted(left.keys() - right.keys()))
    found += _only(task, f"the {role}", sorted(right.keys() - left.keys()))
    for what in ("gold", "cluster"):
        unlike = [
            key
            for key in sorted(left.keys() & right.keys())
            if getattr(left[key], what) != getattr(right[key], what)
        ]
        if unlike:
            found.append(
                f"{task}: {what} differs on {counted(len(unlike), 'item')}, first {unlike[0]}"
            )
    return found


def _differs(what: str, ours: object, other: object, role: str) -> str:
    return f"{what}: candidate {_brief(ours)}, {role} {_brief(other)}"


def _brief(value: object) -> str:
    """A value as it is, a sha256 by its beginning."""
    text = repr(value)
    return text[1:17] if re.fullmatch("'[0-9a-f]{64}'", text) else text


def _only(task: str, whose: str, ids: list[str]) -> list[str]:
    if not ids:
        return []
    stand = "item stands" if len(ids) == 1 else "items stand"
    return [f"{task}: {len(ids)} {stand} only in {whose}'s report, first {ids[0]}"]


def _truncation(scores: TaskScores) -> tuple[int, int]:
    return scores.truncated_items, scores.truncated_examples
