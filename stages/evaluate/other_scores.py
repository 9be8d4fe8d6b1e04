"""Items and scores of tasks beside the suites: lm-eval's own, and held-out text."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_evaluate

from artifacts.errors import StageFailed
from artifacts.eval_report import PART, Item, Score, TaskScores
from artifacts.validation import shown
from stages.evaluate import lm_eval_tasks, scores
from stages.evaluate.other_tasks import UNNAMED, LmEvalTask, TextTask
from stages.evaluate.sampling import Sampling

LONGEST_ANSWER = 2000
"""Characters of a written text that items.jsonl keeps; lm-eval's samples have all of it."""


def evaluate_lm_eval(
    model: LM,
    config: LmEvalTask,
    loaded: dict[str, Any],
    sampling: Sampling,
    *,
    chat_template: bool = False,
) -> tuple[dict[str, TaskScores], list[Item], dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Ask one of lm-eval's tasks, `loaded` by `lm_eval_tasks.load`. Returns our scores by title and
    items, and lm-eval's results and samples.

    A group whose tasks have different metrics has no average: its title stands once for each
    metric, as TITLE@METRIC, and where a metric has no average over tasks as TITLE@TASK.
    """
    tasks = loaded["tasks"]
    if (fits := getattr(model, "fits", None)) is not None:
        for task in tasks.values():
            lm_eval_tasks.fit(task, fits)
    found = lm_evaluate(
        lm=model,
        task_dict=loaded,
        limit=config.limit,
        bootstrap_iters=1000,  # for metrics whose error has no closed form
        apply_chat_template=chat_template,
        fewshot_as_multiturn=chat_template,
    )
    samples = found.pop("samples")
    measures = {name: _measure(task, samples[name]) for name, task in tasks.items()}
    parts: dict[str, list[str]] = {}
    for name, measure in measures.items():
        parts.setdefault(measure.metric if measure.averages else name, []).append(name)
    items: list[Item] = []
    scored: dict[str, TaskScores] = {}
    for part, names in parts.items():
        title, part_of = config.title, None
        if len(parts) > 1:
            title, part_of = f"{title}{PART}{re.sub(UNNAMED, '_', part)}", title
        measure = measures[names[0]]
        answers = [item for name in names for item in _items(title, name, measure, samples[name])]
        asked = {name: tasks[name] for name in names}
        about: dict[str, Any] = {"part_of": part_of}
        if not measure.averages:
            about |= _aggregate(names[0], measure.metric, samples[names[0]], found)
        averages = _scores(config, asked, measure, answers, samples, sampling)
        scored[title] = averages.model_copy(update=about)
        items += answers
    return scored, items, found, samples


@dataclass(frozen=True)
class Measure:
    """What a task is measured in."""

    metric: str
    averages: bool
    """Whether the score is the mean of the items' values; else only all items have one."""


def _measure(task: Any, samples: Sequence[dict[str, Any]]) -> Measure:
    """The task's first metric that is a mean of numbers of which more is better; bits per byte; or
    else its first one, whatever it is."""
    rows = _first_filter(samples)
    aggregations, better = task.aggregation(), task.higher_is_better()
    named = [name for name in (*aggregations, *rows[0]["metrics"]) if name in rows[0]]
    for name in named:
        numbers = all(_is_number(row.get(name)) for row in rows)
        if aggregations.get(name) is mean and better.get(name) and numbers:
            return Measure(name, averages=True)
    if "bits_per_byte" in named:
        return Measure("bits_per_byte", averages=True)
    if not named:
        raise StageFailed(f"{task.config.task}: its samples hold no metric")
    return Measure(named[0], averages=False)


def _aggregate(
    name: str, metric: str, samples: Sequence[dict[str, Any]], found: dict[str, Any]
) -> dict[str, Any]:
    """lm-eval's own figure over all items of a task, with its own error if it has one."""
    of_task, kind = found["results"][name], samples[0]["filter"]
    value, error = of_task.get(f"{metric},{kind}"), of_task.get(f"{metric}_stderr,{kind}")
    if not _is_number(value):
        raise StageFailed(f"{name}: its {metric} is {shown(value)}; a finite number would be right")
    value, error = float(value), float(error) if _is_number(error) else None
    score = Score(n=len(_first_filter(samples)), correct=0, acc=value, stderr=error)
    averages = {"micro": value, "micro_stderr": error, "macro": value, "macro_stderr": error}
    return {**averages, "subjects": {name: score}, "aggregate": True}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_) and bool(np.isfinite(value))


def _first_filter(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of several filters the first one's answers, in the order of the questions."""
    rows = [row for row in samples if row["filter"] == samples[0]["filter"]]
    return sorted(rows, key=lambda row: row["doc_id"])


def _items(
    title: str, name: str, measure: Measure, samples: Sequence[dict[str, Any]]
) -> list[Item]:
    """The answers of one task in our form."""
    items = []
    for row in _first_filter(samples):
        responses = row["filtered_resps"]
        choices = [float(one[0]) for one in responses] if _scored(responses) else []
        value, weight = _value(row[measure.metric], measure) if measure.averages else (None, None)
        written = responses[0] if responses and isinstance(responses[0], str) else None
        target = row["target"]
        items.append(
            Item(
                task=title,
                subject=name,
                id=f"{name}/{row['doc_id']}",
                gold=target if isinstance(target, int) and len(choices) > 1 else -1,
                choice=choices.index(max(choices)) if len(choices) > 1 else -1,
                correct=value == 1.0 and measure.metric != "bits_per_byte",
                loglikelihoods=choices,
                score=None if value in (0.0, 1.0) else value,
                weight=weight,
                answer=None if written is None else written[:LONGEST_ANSWER],
            )
        )
    return items


def _scored(responses: Sequence[Any]) -> bool:
    return all(isinstance(one, tuple | list) and len(one) == 2 for one in responses)


def _value(found: Any, measure: Measure) -> tuple[float, float | None]:
    """An item's value and weight."""
    if measure.metric == "bits_per_byte":
        loglikelihood, size = found
        return -loglikelihood / size / math.log(2), float(size)
    return float(found), None


def _scores(
    config: LmEvalTask,
    tasks: dict[str, Any],
    measure: Measure,
    items: list[Item],
    samples: dict[str, list[dict[str, Any]]],
    sampling: Sampling,
) -> TaskScores:
    kinds = {task.OUTPUT_TYPE for task in tasks.values()}
    chances = [1 / len(item.loglikelihoods) for item in items if len(item.loglikelihoods) > 1]
    choosing = len(chances) == len(items)
    versions = {str(task.VERSION) for task in tasks.values()}
    letters = [chr(ord("A") + i) for i in range(max(len(i.loglikelihoods) for i in items))]
    return summary(
        items,
        suite=config.task if not config.is_file else Path(config.task).stem,
        form=", ".join(sorted(kinds)),
        version=", ".join(sorted(versions)),
        num_fewshot=max(int(task.get_config("num_fewshot") or 0) for task in tasks.values()),
        prompt_hash=prompt_hash(sample["arguments"] for name in tasks for sample in samples[name]),
        metric=measure.metric,
        chance=math.fsum(chances) / len(items) if choosing else 0.0,
        answer_counts={
            letter: sum(item.choice == i for item in items) for i, letter in enumerate(letters)
        }
        if choosing
        else {},
        calibration=scores.calibration(items)
        if choosing and measure.averages and all(i.gold >= 0 for i in items)
        else None,
        truncated_items=sum(getattr(task, "cut_items", 0) for task in tasks.values()),
        truncated_examples=sum(getattr(task, "cut_examples", 0) for task in tasks.values()),
        sampling_used=sampling.used() if "generate_until" in kinds else [],
    )


def evaluate_texts(
    model: LM, config: TextTask, texts: Sequence[tuple[str, str]]
) -> tuple[TaskScores, list[Item]]:
    """Bits per byte of held-out text: -log2 of the probability of a text over its UTF-8 bytes.

    A text longer than the model's window is cut into windows that each begin with one token of the
    one before; every token is predicted once.
    """
    asked = [
        Instance("loglikelihood_rolling", {}, (text,), 0, (config.title, i, 1))
        for i, (_, text) in enumerate(texts)
    ]
    items = []
    for i, ((name, text), total) in enumerate(
        zip(texts, model.loglikelihood_rolling(asked), strict=True)
    ):
        size = len(text.encode())
        if not math.isfinite(total):
            raise StageFailed(f"{config.title}: the log-likelihood of text {i} is no finite number")
        items.append(
            Item(
                task=config.title,
                subject=name,
                id=f"{name}/{i}",
                gold=-1,
                choice=-1,
                correct=False,
                loglikelihoods=[total],
                score=-total / size / math.log(2),
                weight=float(size),
            )
        )
    found = summary(
        items,
        suite="text",
        form="loglikelihood_rolling",
        version="1",
        num_fewshot=0,
        prompt_hash=prompt_hash([[text]] for _, text in texts),
        metric="bits_per_byte",
        chance=0.0,
    )
    return found, items


def summary(items: list[Item], **about: Any) -> TaskScores:
    """Averages of the items' values: micro over all, macro over subjects."""
    subjects: dict[str, list[Item]] = {}
    for item in items:
        subjects.setdefault(item.subject, []).append(item)
    micro, error = scores.weighted(items)
    found = {name: _score(of) for name, of in subjects.items()}
    errors = [score.stderr for score in found.values()]
    known = [one for one in errors if one is not None]
    return TaskScores(
        language="",
        items=len(items),
        correct=sum(item.correct for item in items),
        micro=micro,
        micro_stderr=error,
        macro=math.fsum(score.acc for score in found.values()) / len(found),
        macro_stderr=math.sqrt(math.fsum(np.square(known))) / len(found)
        if len(known) == len(errors)
        else None,
        subjects=found,
        groups={},
        **{"answer_counts": {}, **about},
    )


def _score(items: list[Item]) -> Score:
    mean, error = scores.weighted(items)
    correct = sum(item.correct for item in items)
    return Score(n=len(items), correct=correct, acc=mean, stderr=error)


def prompt_hash(prompts: Iterable[Any]) -> str:
    """sha256 over every request's arguments, in order."""
    digest = hashlib.sha256()
    for arguments in prompts:
        text = json.dumps([list(one) for one in arguments], ensure_ascii=False, default=str)
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()
