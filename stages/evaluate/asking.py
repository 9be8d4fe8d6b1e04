"""Everything an evaluation asks, in the config's order: suites, lm-eval's tasks, held-out text."""

from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.model import LM

from artifacts.eval_report import Item, TaskScores
from stages.evaluate import lm_eval_tasks
from stages.evaluate.checks import Questions
from stages.evaluate.config import EvaluateConfig, TaskConfig
from stages.evaluate.other_scores import evaluate_lm_eval, evaluate_texts
from stages.evaluate.other_tasks import LmEvalTask, TextTask
from stages.evaluate.questions import LETTERS
from stages.evaluate.scoring import evaluate
from stages.evaluate.suites import BuiltTask, build


@dataclass
class Tasks:
    """What is asked, ready for lm-eval."""

    suites: list[BuiltTask] = field(default_factory=list)
    submissions: list[BuiltTask] = field(default_factory=list)
    """C-Eval's questions without answers."""
    lm_eval: dict[str, Any] = field(default_factory=dict)
    """Title -> what lm-eval has loaded."""


@dataclass
class Everything:
    """What was found."""

    tasks: dict[str, TaskScores]
    items: list[Item]
    results: dict[str, Any]
    """lm-eval's own results of all its tasks."""
    samples: dict[str, list[dict[str, Any]]]
    submissions: dict[str, dict[str, dict[str, str]]]
    """Title -> subject -> question's id -> letter."""


def build_tasks(config: EvaluateConfig, questions: Questions) -> Tasks:
    """Make or load lm-eval's tasks. Raises BadInput for those that it does not have."""
    found = Tasks()
    for task in config.tasks:
        if isinstance(task, TaskConfig):
            built = build(task, questions.subjects[task.title])
            (found.submissions if task.submission else found.suites).append(built)
        elif isinstance(task, LmEvalTask):
            found.lm_eval[task.title] = lm_eval_tasks.load(task, allow_network=config.allow_network)
    return found


def ask_all(lm: LM, config: EvaluateConfig, tasks: Tasks, questions: Questions) -> Everything:
    """Ask it all. Raises BadInput for questions that are too long for the model."""
    how: dict[str, Any] = {"chat_template": config.chat_template}
    leave_out = config.overlong == "leave_out"
    everything = Everything({}, [], {}, {}, {})
    if tasks.suites:
        outcome = evaluate(lm, tasks.suites, leave_out=leave_out, **how)
        everything.tasks.update(outcome.tasks)
        everything.items += outcome.items
        _add(everything, outcome.results, outcome.samples)
    if tasks.submissions:
        outcome = evaluate(lm, tasks.submissions, leave_out=leave_out, **how)
        for item in outcome.items:
            letters = everything.submissions.setdefault(item.task, {})
            number = item.id.removeprefix(f"{item.subject}/")
            letters.setdefault(item.subject, {})[number] = LETTERS[item.choice]
    for task in config.tasks:
        if isinstance(task, LmEvalTask):
            loaded = tasks.lm_eval[task.title]
            parts, items, results, samples = evaluate_lm_eval(
                lm, task, loaded, config.sampling, **how
            )
            _add(everything, results, samples)
            everything.tasks.update(parts)
        elif isinstance(task, TextTask):
            scores, items = evaluate_texts(lm, task, questions.texts[task.title])
            everything.tasks[task.title] = scores
        else:
            continue
        everything.items += items
    place = {task.title: i for i, task in enumerate(config.tasks)}
    everything.tasks = dict(
        sorted(everything.tasks.items(), key=lambda one: place[one[1].part_of or one[0]])
    )
    return everything


def _add(
    everything: Everything, results: dict[str, Any], samples: dict[str, list[dict[str, Any]]]
) -> None:
    """Join lm-eval's results: tables by task are merged, single values stay the first ones."""
    for key, value in results.items():
        if isinstance(value, dict) and isinstance(everything.results.get(key), dict):
            everything.results[key] |= value
        else:
            everything.results.setdefault(key, value)
    everything.samples |= samples
