"""What to score a model on, and how."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from artifacts.errors import BadInput
from artifacts.fields import MOST, Count
from stages.evaluate.other_tasks import LmEvalTask, TextTask, kind_of, read_texts
from stages.evaluate.sampling import SamplingProfile, profile
from stages.spec import Input, StageConfig, StageSpec

SuiteName = Literal["mmlu", "ceval", "cmmlu"]
Split = Literal["dev", "val", "test"]

EVALUATED_SPLIT: dict[SuiteName, Split] = {"mmlu": "test", "ceval": "val", "cmmlu": "test"}
"""The split that lm-eval scores."""

WHICH_MODEL = {
    *("pretrained", "peft", "delta", "model", "model_id", "engine", "deployment_id", "path"),
    *("load", "revision", "subfolder", "tokenizer", "tokenizer_model", "trust_remote_code"),
}
WHICH_MODEL_ENDS = ("_path", "_file", "_url", "_revision")
"""Arguments of lm-eval's models, or their endings, that say what is loaded, or run code of it."""


class TaskConfig(BaseModel):
    """One task: a suite's subjects, asked in one form."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$", max_length=80)
    """The task's name in the report; by default its data, suite and form."""
    suite: SuiteName
    """mmlu (English), ceval or cmmlu (Chinese)."""
    form: Literal["letter", "continuation"] = "letter"
    """letter: the question with its options, the answer's letter is scored. continuation: the
    question alone, the options' texts are scored."""
    data: Literal["local", "world", "saved", "hub"]
    """local: a file a subject as published under `path`, CSV, or the hub's rows as .jsonl or
    .parquet. world: the generated world's test, from the
    corpus. saved: a dataset written by `datasets.save_to_disk`, at `path`. hub: the Hugging Face
    hub, if `allow_network` is set."""
    path: Path | None = None
    """For local, the folder that holds dev, val and test; for saved, the dataset's folder."""
    revision: str | None = None
    """For hub, the commit to read; without it the newest, which may change."""
    split: Split | None = None
    """The split to score; by default mmlu's test and ceval's val, as lm-eval does."""
    num_fewshot: Count = Field(0, ge=0)
    """Worked examples before each question: the first ones of the subject's dev split."""
    limit: int | float | None = None
    """Questions a subject, the first ones: a number from 1, or a share below 1 (rounded up)."""
    subjects: tuple[str, ...] = ()
    """Subjects to ask; all by default."""
    submission: bool = False
    """Of C-Eval's test split, whose answers are not published: write the model's answers as
    submission-NAME.json, in the form its leaderboard takes, instead of a score."""
    describe: bool | None = None
    """Begin the prompt with lm-eval's sentence about the subject. By default yes, except for the
    world's continuation form, whose prompt equals fine-tuning's token by token."""

    @field_validator("limit")
    @classmethod
    def _limit_counts(cls, value: int | float | None) -> int | float | None:
        if value is not None and not (0 < value < 1 or (1 <= value <= MOST and value % 1 == 0)):
            raise ValueError("a whole number from 1 or a share between 0 and 1 would do")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "TaskConfig":
        if self.data in ("local", "saved") and self.path is None:
            raise ValueError(f"path is missing; data: {self.data} needs the folder")
        if self.data in ("world", "hub") and self.path is not None:
            raise ValueError(f"path is {str(self.path)!r}; data: {self.data} takes none")
        if self.data != "hub" and self.revision is not None:
            raise ValueError(f"revision is {self.revision!r}; data: {self.data} takes none")
        unlabelled = self.suite == "ceval" and self.split == "test"
        if unlabelled and not self.submission:
            raise ValueError(
                "split is 'test'; C-Eval keeps the answers of its test split to itself, "
                "so only val can be scored; submission: true writes the answers to hand in"
            )
        if self.submission and not unlabelled:
            raise ValueError("submission is true; it is for suite: ceval with split: test")
        if self.split == "dev" and self.num_fewshot:
            raise ValueError("split is 'dev'; the few-shot examples come from it, choose another")
        if len(set(self.subjects)) != len(self.subjects):
            raise ValueError("subjects names one twice; once would do")
        return self

    @property
    def title(self) -> str:
        """The task's name in the report."""
        if self.name:
            return self.name
        parts = ["world"] if self.data == "world" else []
        return "_".join([*parts, self.suite, *(["continuation"] if self.by_text else [])])

    @property
    def by_text(self) -> bool:
        """Whether the options' texts are scored instead of letters."""
        return self.form == "continuation"

    @property
    def scored_split(self) -> Split:
        """The split whose questions are asked."""
        return self.split or EVALUATED_SPLIT[self.suite]

    @property
    def described(self) -> bool:
        """Whether prompts begin with the sentence about the subject."""
        if self.describe is not None:
            return self.describe
        return not (self.data == "world" and self.by_text)

    def count(self, available: int) -> int:
        """How many of a subject's `available` questions are asked."""
        if self.limit is None:
            return available
        if self.limit < 1:
            return -int(-available * self.limit // 1)
        return min(int(self.limit), available)


class LmEvalModel(BaseModel):
    """One of lm-eval's own models instead of MindCycle's engines."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str = Field(min_length=1)
    """Its name in lm-eval, such as hf or vllm; its packages must be installed."""
    args: dict[str, str | int | float | bool] = {}
    """Its arguments, but none that says which model or tokenizer is loaded: that is the stage's
    input, by whose digest the report goes. Code that comes with a model is never run."""

    @field_validator("args")
    @classmethod
    def _scores_the_input(cls, value: dict[str, Any]) -> dict[str, Any]:
        if other := [key for key in value if key in WHICH_MODEL or key.endswith(WHICH_MODEL_ENDS)]:
            raise ValueError(
                f"names {', '.join(other)}; the report goes by the digest of the stage's input, so "
                "that is what is loaded, and none of its code is run; leave it out"
            )
        return value


AnyTask = Annotated[
    Annotated[TaskConfig, Tag("function-suite")]
    | Annotated[LmEvalTask, Tag("function-task")]
    | Annotated[TextTask, Tag("function-texts")],
    Discriminator(kind_of),
]


class EvaluateConfig(StageConfig):
    """Tasks, sampling profile and limits of an evaluation."""

    tasks: tuple[AnyTask, ...]
    """What is asked: suites (`suite`), lm-eval's tasks (`task`), held-out text (`texts`)."""
    sampling: SamplingProfile = Field(default_factory=lambda: profile("default"))
    """How text is drawn: a profile's name (default, greedy, open), a file, or the values. Tasks
    that score likelihoods draw nothing and use none of it."""
    batch_size: Count = Field(16, gt=0)
    """Prompts a forward pass; changes speed and memory, not the choices."""
    max_length: Count | None = Field(None, gt=1)
    """Longest prompt and answer together, tokens; by default what the model was trained for."""
    overlong: Literal["refuse", "leave_out"] = "refuse"
    """What becomes of a question that is too long even without examples, since a question is never
    cut: refuse the run, or leave such questions out and count them in the report."""
    chat_template: bool = False
    """Wrap prompts in the tokenizer's chat template."""
    allow_network: bool = False
    """Allow reading datasets from the Hugging Face hub, and what a task's own code downloads."""
    device: Literal["auto", "CPU", "GPU", "Ascend"] = "auto"
    """Where MindSpore computes; onnxruntime uses the CPU."""
    bundle_adapter: str | None = None
    """Of an onnx-bundle with adapters, the one to score with: adapters/NAME.onnx_adapter."""
    lm_eval_model: LmEvalModel | None = None
    """One of lm-eval's models to ask instead: {name: hf, args: {dtype: float32}}. By default a
    checkpoint or Hugging Face directory is asked in MindSpore, a bundle in onnxruntime."""

    @field_validator("tasks")
    @classmethod
    def _some(cls, value: tuple[AnyTask, ...]) -> tuple[AnyTask, ...]:
        if not value:
            raise ValueError("names no task; one at least would do")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "EvaluateConfig":
        titles = [task.title for task in self.tasks]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"tasks: two are called {twice[0]!r}; give one a name of its own")
        if not self.allow_network and any(task.data == "hub" for task in self.tasks):
            raise ValueError("tasks: data: hub needs the network; set allow_network: true")
        return self

    def source_files(self) -> list[Path]:
        """The files of local and saved tasks that will be read."""
        files: dict[Path, None] = {}
        problems: list[str] = []
        for task in self.tasks:
            try:
                files.update(dict.fromkeys(task_files(task)))
            except BadInput as error:
                problems += error.problems
        if problems:
            raise BadInput(*problems)
        return list(files)

    def look_into_sources(self) -> None:
        """The questions of local files and the held-out texts; lm-eval's are for lm-eval."""
        from stages.evaluate.sources import load_subjects  # it needs this module's classes

        problems: list[str] = []
        for task in self.tasks:
            try:
                if isinstance(task, TextTask):
                    read_texts(task)
                elif isinstance(task, TaskConfig) and task.data == "local":
                    load_subjects(task, None)
            except BadInput as error:
                problems += error.problems
        if problems:
            raise BadInput(*problems)

    def seeds(self) -> dict[str, int]:
        return {"sampling": self.sampling.seed}


def task_files(task: AnyTask) -> list[Path]:
    """The files a task reads, without reading them. Raises BadInput when there is none."""
    if not isinstance(task, TaskConfig):
        return task.files()
    if task.data == "saved" and task.path is not None:
        found = sorted(path for path in task.path.rglob("*") if path.is_file())
        if not found:
            raise BadInput(f"tasks.{task.title}.path: {task.path} is missing or empty")
        return found
    if task.data != "local" or task.path is None:
        return []
    files = list(subject_files(task, task.path, task.scored_split).values())
    if task.num_fewshot:
        files += subject_files(task, task.path, "dev").values()
    return files


def subject_files(task: TaskConfig, folder: Path, split: str) -> dict[str, Path]:
    """Subject -> file of one split below `folder`, in alphabetical order.

    Raises BadInput when there is none, or when a subject that was asked for is missing.
    """
    where = f"tasks.{task.title}.path"
    root = folder if (folder / split).is_dir() else folder / "data"  # MMLU's archive has data/
    if not (root / split).is_dir():
        raise BadInput(f"{where}: {folder} has no folder {split} (and no data/{split})")
    tables = [
        path
        for path in sorted((root / split).iterdir())
        if path.suffix in (".csv", ".jsonl", ".parquet") and path.is_file()
    ]
    # MMLU and C-Eval name the split in each file, CMMLU does not.
    named = [path for path in tables if path.stem.endswith(f"_{split}")]
    found: dict[str, Path] = {}
    for path in named or tables:
        subject = path.stem.removesuffix(f"_{split}")
        if subject in found:
            raise BadInput(f"{where}: {found[subject]} and {path} are of one subject; keep one")
        found[subject] = path
    if not found:
        raise BadInput(f"{where}: {root / split} holds no file SUBJECT_{split}.csv")
    if missing := [subject for subject in task.subjects if subject not in found]:
        raise BadInput(
            f"tasks.{task.title}.subjects: {root / split} has no {', '.join(missing)}; "
            f"it has {', '.join(found)}"
        )
    return {subject: found[subject] for subject in task.subjects or found}


SPEC = StageSpec(
    name="evaluate",
    makes="eval-report",
    config=EvaluateConfig,
    inputs={
        "model": Input(("hf-model", "checkpoint", "onnx-bundle")),
        "adapter": Input(("adapter",), required=False),
        "corpus": Input(("corpus",), required=False),
    },
    code_version=4,
    resumes=True,
)
