"""MMLU, C-Eval and CMMLU as lm-eval defines them: its own files, over questions held in memory.

The files are read one by one, since building lm-eval's index of 14,000 tasks takes 15 seconds.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import lm_eval.utils
from lm_eval.api.group import Group
from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask
from lm_eval.config.group import AggMetricConfig
from lm_eval.tasks._yaml_loader import load_yaml

from artifacts.errors import BadInput
from stages.evaluate.config import TaskConfig
from stages.evaluate.questions import LETTERS, Question, Subject

LM_EVAL_TASKS = Path(lm_eval.__file__).parent / "tasks"
OWN = Path(__file__).parent / "suites"
LANGUAGE = {"mmlu": "en", "ceval": "zh", "cmmlu": "zh"}
TEMPLATE = {
    ("mmlu", "letter"): LM_EVAL_TASKS / "mmlu/default/_default_template_yaml",
    ("mmlu", "continuation"): LM_EVAL_TASKS / "mmlu/continuation/_continuation_template_yaml",
    ("ceval", "letter"): LM_EVAL_TASKS / "ceval/_default_ceval_yaml",
    ("ceval", "continuation"): OWN / "ceval_continuation.yaml",
    ("cmmlu", "letter"): LM_EVAL_TASKS / "cmmlu/_default_template_yaml",
    ("cmmlu", "continuation"): OWN / "cmmlu_continuation.yaml",
}
DESCRIPTION = {
    ("mmlu", "letter"): "The following are multiple choice questions (with answers) about {}.\n\n",
    ("mmlu", "continuation"): "The following are questions (with answers) about {}.\n\n",
    ("ceval", "letter"): "以下是中国关于{}的单项选择题，请选出其中的正确答案。\n\n",
    ("ceval", "continuation"): "以下是中国关于{}的问题，请给出正确答案。\n\n",
    ("cmmlu", "letter"): "以下是关于{}的单项选择题，请直接给出正确答案的选项。\n\n",
    ("cmmlu", "continuation"): "以下是关于{}的问题，请给出正确答案。\n\n",
}
"""For subjects that lm-eval has no file of; those it has keep their own sentence."""

# lm-eval compiles a prompt's template anew for every question: 14,042 questions with five examples
# each take 120 s instead of 9 s.
lm_eval.utils.env.from_string = functools.lru_cache(1024)(lm_eval.utils.env.from_string)

Fits = Callable[[str, Sequence[str]], bool]
"""Whether a prompt with any one of these answers is short enough for the model."""


class _Examples(FirstNSampler):
    """The first n examples, of which some at the front may be left out."""

    skip = 0

    def sample(self, n: int, eval_doc: Any = None, df: Any = None, **kwargs: Any) -> Any:
        return super().sample(self.skip + n, eval_doc, df, **kwargs)[self.skip :]


class SubjectTask(ConfigurableTask):  # type: ignore[misc, unused-ignore]
    """An lm-eval task over one subject's questions.

    A prompt that is too long loses whole examples, the first ones first; the question is never cut.
    """

    def __init__(self, config: dict[str, Any], subject: Subject, suite: str):
        self.subject = subject
        self.fits: Fits | None = None
        self.cut_items = self.cut_examples = 0
        """Prompts that lost examples, and examples lost."""
        self._split = config.get("test_split") or config["validation_split"]
        self._row = {"mmlu": mmlu_row, "ceval": ceval_row, "cmmlu": cmmlu_row}[suite]
        super().__init__(config=config)
        self.sampler = _Examples(self.fewshot_docs(), rnd=None)

    def download(self, dataset_kwargs: Any = None, **kwargs: Any) -> None:
        """Called by lm-eval, which would load its dataset here."""
        tables = {self._split: self.subject.questions, "dev": self.subject.examples}
        self.dataset = {
            split: datasets.Dataset.from_list(
                [self._row(self.subject.name, question) for question in questions]
            )
            for split, questions in tables.items()
        }

    def fewshot_docs(self) -> list[dict[str, Any]]:
        """The rows that examples are taken from."""
        return list(self.dataset["dev"])

    def fewshot_context(self, doc: dict[str, Any], num_fewshot: int, **how: Any) -> str:
        """The prompt, with as many of the examples as fit. Raises BadInput if none helps."""
        for dropped in range(num_fewshot + 1):
            self.sampler.skip = dropped
            context: str = super().fewshot_context(doc, num_fewshot - dropped, **how)
            if self.fits is None or self.fits(context, self.answers(doc)):
                self.cut_items += dropped > 0
                self.cut_examples += dropped
                return context
        question = doc.get("question") or doc["Question"]
        raise BadInput(f"{self.config.task}: {question[:60]!r}... does not fit the model")

    def answers(self, doc: dict[str, Any]) -> list[str]:
        """The texts whose likelihoods are compared."""
        return [f"{self.config.target_delimiter}{choice}" for choice in self.doc_to_choice(doc)]


def mmlu_row(subject: str, question: Question) -> dict[str, Any]:
    """A question as the hub's cais/mmlu has it."""
    return {
        "question": question.text,
        "subject": subject,
        "choices": list(question.options),
        "answer": question.answer,
    }


def ceval_row(subject: str, question: Question) -> dict[str, Any]:
    """A question as the hub's ceval/ceval-exam has it."""
    return {
        "id": question.id,
        "question": question.text,
        **dict(zip(LETTERS, question.options, strict=True)),
        "answer": LETTERS[question.answer],
        "explanation": question.explanation,
    }


def cmmlu_row(subject: str, question: Question) -> dict[str, Any]:
    """A question as the hub's haonan-li/cmmlu has it."""
    options = dict(zip(LETTERS, question.options, strict=True))
    return {"Question": question.text, **options, "Answer": LETTERS[question.answer]}


@dataclass
class BuiltTask:
    """One of our tasks: an lm-eval group with an lm-eval task for each subject."""

    config: TaskConfig
    subjects: list[Subject]
    """With title and category filled in where they are known."""
    tasks: dict[str, SubjectTask]
    """lm-eval's tasks by name, in the order of `subjects`."""
    group: Group
    version: str
    left_out: dict[str, int] = field(default_factory=dict)
    """Subject -> questions left out because they are too long."""


def build(config: TaskConfig, subjects: list[Subject]) -> BuiltTask:
    """Make lm-eval's tasks for these subjects."""
    known = [_with_known_group(config.suite, subject) for subject in subjects]
    group = Group(
        config.title,
        aggregate_metric_list=[AggMetricConfig(metric="acc", weight_by_size=True)],
    )
    tasks: dict[str, SubjectTask] = {}
    for subject in known:
        task = SubjectTask(_definition(config, subject), subject, config.suite)
        tasks[task.task_name] = task
        group.add(task)
    version = next((str(task.VERSION) for task in tasks.values()), "")
    group.metadata = {"version": version}
    return BuiltTask(config, known, tasks, group, version)


def leave_out_overlong(built: BuiltTask, fits: Fits, how: dict[str, Any]) -> list[str]:
    """Take out the questions that do not fit even without examples. Returns their ids.

    `how` says how prompts are made (chat template), as lm-eval passes it.
    """
    out: list[str] = []
    for at, subject in enumerate(built.subjects):
        name = f"{built.config.title}_{subject.name}"
        task = built.tasks[name]
        task.fits = fits
        docs = task.dataset[task._split]
        short: list[Question] = []
        for question, doc in zip(subject.questions, docs, strict=True):
            try:
                task.fewshot_context(doc, 0, **how)
                short.append(question)
            except BadInput:
                out.append(f"{subject.name}/{question.id}")
        if lost := len(subject.questions) - len(short):
            built.left_out[subject.name] = lost
            task.subject = built.subjects[at] = Subject(
                subject.name, short, subject.examples, subject.title, subject.category
            )
            if short:
                task.download()
                task.task_docs = task.eval_docs
            else:
                del built.tasks[name]
                built.group.pop(name)
    built.subjects = [subject for subject in built.subjects if subject.questions]
    return out


def _definition(config: TaskConfig, subject: Subject) -> dict[str, Any]:
    """lm-eval's definition of the task for this subject, with our split and few-shot count."""
    style = (config.suite, config.form)
    definition = dict(load_yaml(TEMPLATE[style]))
    own = _lm_eval_file(config, subject.name)
    if own is not None:
        definition |= load_yaml(own)
    else:
        title = subject.title or subject.name.replace("_", " ")
        definition |= {
            "dataset_name": subject.name,
            "description": DESCRIPTION[style].format(title),
        }
    if not config.described:
        definition["description"] = ""
    for key in ("tag", "group"):
        definition.pop(key, None)
    split = "test_split" if "test_split" in definition else "validation_split"
    return definition | {
        "task": f"{config.title}_{subject.name}",
        "task_alias": subject.name,
        "num_fewshot": config.num_fewshot,
        split: config.scored_split,
    }


def _lm_eval_file(config: TaskConfig, subject: str) -> Path | None:
    if config.data == "world":
        return None
    folders = {
        ("mmlu", "letter"): f"mmlu/default/mmlu_{subject}.yaml",
        ("mmlu", "continuation"): f"mmlu/continuation/mmlu_{subject}.yaml",
        ("ceval", "letter"): f"ceval/ceval-valid_{subject}.yaml",
        ("cmmlu", "letter"): f"cmmlu/cmmlu_{subject}.yaml",
    }
    name = folders.get((config.suite, config.form))
    path = LM_EVAL_TASKS / name if name else None
    return path if path and path.is_file() else None


def _with_known_group(suite: str, subject: Subject) -> Subject:
    """Fill in the published title and category, where the source gave none."""
    known = {"mmlu": _mmlu_subjects, "ceval": _ceval_subjects, "cmmlu": _cmmlu_subjects}[suite]()
    entry = known.get(subject.name, {})
    return Subject(
        subject.name,
        subject.questions,
        subject.examples,
        subject.title or entry.get("name"),
        subject.category or entry.get("category"),
    )


@functools.cache
def _ceval_subjects() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(
        (OWN / "ceval_subjects.json").read_text(encoding="utf-8")
    )
    return found


@functools.cache
def _mmlu_subjects() -> dict[str, dict[str, str]]:
    """From the tags in lm-eval's files: mmlu_social_sciences_tasks."""
    titles = {"stem": "STEM", "social_sciences": "Social Sciences"}
    found = {}
    for path in sorted((LM_EVAL_TASKS / "mmlu/default").glob("mmlu_*.yaml")):
        name = path.stem.removeprefix("mmlu_")
        tag = load_yaml(path, recursive=False)["tag"]
        tag = tag.removeprefix("mmlu_").removesuffix("_tasks")
        found[name] = {
            "name": name.replace("_", " "),
            "category": titles.get(tag, tag.capitalize()),
        }
    return found


@functools.cache
def _cmmlu_subjects() -> dict[str, dict[str, str]]:
    """Names from the sentences in lm-eval's files; groups as CMMLU's paper has them."""
    groups: dict[str, list[str]] = json.loads(
        (OWN / "cmmlu_groups.json").read_text(encoding="utf-8")
    )
    group_of = {subject: group for group, subjects in groups.items() for subject in subjects}
    found = {}
    for path in sorted((LM_EVAL_TASKS / "cmmlu").glob("cmmlu_*.yaml")):
        name = path.stem.removeprefix("cmmlu_")
        sentence = load_yaml(path, recursive=False)["description"]
        title = sentence.removeprefix("以下是关于").partition("的单项选择题")[0]
        found[name] = {"name": title, "category": group_of.get(name, "Other")}
    return found
