"""One evaluation: lm-eval asks a model, and its answers become our items and scores.

The model may be any of lm-eval's: ours over an engine, or a stand-in that always says C.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate as lm_evaluate

from artifacts.errors import BadInput, StageFailed
from artifacts.eval_report import Item, Score, TaskScores
from stages.evaluate import scores
from stages.evaluate.questions import LETTERS
from stages.evaluate.suites import LANGUAGE, BuiltTask, leave_out_overlong

CHANCE = 1 / len(LETTERS)


@dataclass
class Outcome:
    """What an evaluation found."""

    tasks: dict[str, TaskScores]
    items: list[Item]
    results: dict[str, Any]
    """lm-eval's own results."""
    samples: dict[str, list[dict[str, Any]]]
    """lm-eval's own samples, by its task names."""


def evaluate(
    model: LM,
    tasks: Sequence[BuiltTask],
    *,
    chat_template: bool = False,
    leave_out: bool = False,
) -> Outcome:
    """Ask `model` every question of `tasks`.

    A model with a method `fits` gets no prompt that it says is too long; questions that are too
    long even without examples are left out if `leave_out`. Raises BadInput for them otherwise.
    """
    fits = getattr(model, "fits", None)
    if fits is not None:
        template = model.apply_chat_template if chat_template else None
        how = {
            "apply_chat_template": chat_template,
            "fewshot_as_multiturn": chat_template,
            "chat_template": template,
        }
        _prepare(tasks, fits, how, leave_out)
    found = lm_evaluate(
        lm=model,
        task_dict={
            "tasks": {name: task for built in tasks for name, task in built.tasks.items()},
            "groups": {built.group.name: built.group for built in tasks},
        },
        bootstrap_iters=1,  # only asks for standard errors; accuracies have a closed form
        apply_chat_template=chat_template,
        fewshot_as_multiturn=chat_template,
    )
    samples = found.pop("samples")
    by_task = {built.config.title: _items(built, samples) for built in tasks}
    return Outcome(
        tasks={
            built.config.title: _scores(built, by_task[built.config.title], samples)
            for built in tasks
        },
        items=[item for items in by_task.values() for item in items],
        results=found,
        samples=samples,
    )


def _prepare(tasks: Sequence[BuiltTask], fits: Any, how: dict[str, Any], leave_out: bool) -> None:
    problems = []
    for built in tasks:
        out = leave_out_overlong(built, fits, how)
        title = built.config.title
        if out and not leave_out:
            problems.append(
                f"tasks.{title}: {len(out)} questions are too long for the model even without "
                f"examples, the first is {out[0]}; overlong: leave_out would leave them out"
            )
        elif not built.tasks:
            problems.append(f"tasks.{title}: every question is too long for the model")
    if problems:
        raise BadInput(*problems)


def _items(built: BuiltTask, samples: dict[str, list[dict[str, Any]]]) -> list[Item]:
    """The answers in our form, subject after subject in the published order."""
    items = []
    for subject, name in zip(built.subjects, built.tasks, strict=True):
        rows = sorted(samples[name], key=lambda sample: sample["doc_id"])
        for question, sample in zip(subject.questions, rows, strict=True):
            values = [float(logprob) for logprob, _ in sample["filtered_resps"]]
            if not all(math.isfinite(value) for value in values):
                raise StageFailed(
                    f"{name}, question {question.id}: a log-likelihood is no finite number"
                )
            choice = values.index(max(values))
            correct = choice == question.answer
            if correct != bool(sample["acc"]):
                raise StageFailed(f"{name}, question {question.id}: lm-eval counts it otherwise")
            items.append(
                Item(
                    task=built.config.title,
                    subject=subject.name,
                    id=f"{subject.name}/{question.id}",
                    gold=question.answer,
                    choice=choice,
                    correct=correct,
                    loglikelihoods=values,
                    cluster=question.cluster,
                )
            )
    return items


def _scores(
    built: BuiltTask, items: list[Item], samples: dict[str, list[dict[str, Any]]]
) -> TaskScores:
    config = built.config
    category = {subject.name: subject.category for subject in built.subjects}
    answered = [scores.Answered(item.subject, item.correct, item.cluster) for item in items]
    macro, macro_stderr = scores.macro(answered)
    chosen = Counter(item.choice for item in items)
    tasks = built.tasks.values()
    return TaskScores(
        suite=config.suite,
        form=config.form,
        language=LANGUAGE[config.suite],
        version=built.version,
        num_fewshot=config.num_fewshot,
        prompt_hash=_prompt_hash(samples[name] for name in built.tasks),
        chance=CHANCE,
        items=len(items),
        correct=sum(item.correct for item in items),
        micro=scores.accuracy(answered),
        micro_stderr=scores.standard_error(answered),
        macro=macro,
        macro_stderr=macro_stderr,
        clusters=scores.cluster_count(answered),
        subjects={
            name: _score([one for one in answered if one.subject == name], category[name])
            for name in category
        },
        groups={
            group: _group_score([one for one in answered if category[one.subject] == group])
            for group in sorted({group for group in category.values() if group})
        },
        answer_counts={letter: chosen[index] for index, letter in enumerate(LETTERS)},
        gold_counts={
            letter: sum(item.gold == index for item in items)
            for index, letter in enumerate(LETTERS)
        },
        calibration=scores.calibration(items),
        fewshot={
            subject.name: [example.id for example in subject.examples[: config.num_fewshot]]
            for subject in built.subjects
            if config.num_fewshot
        },
        truncated_items=sum(task.cut_items for task in tasks),
        truncated_examples=sum(task.cut_examples for task in tasks),
        left_out_items=sum(built.left_out.values()),
    )


def _score(answered: list[scores.Answered], category: str | None) -> Score:
    return Score(
        n=len(answered),
        correct=sum(one.correct for one in answered),
        acc=scores.accuracy(answered),
        stderr=scores.standard_error(answered),
        category=category,
    )


def _group_score(answered: list[scores.Answered]) -> Score:
    macro, error = scores.macro(answered)
    return _score(answered, None).model_copy(update={"macro": macro, "macro_stderr": error})


def _prompt_hash(tables: Any) -> str:
    """sha256 over every prompt and its choices, in order."""
    digest = hashlib.sha256()
    for samples in tables:
        for sample in samples:
            arguments = sample["arguments"]
            prompt = [arguments[0][0], *(argument[1] for argument in arguments)]
            digest.update(json.dumps(prompt, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()
