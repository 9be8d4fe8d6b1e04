"""Tasks beside the suites of subjects: any of lm-eval's, and held-out text."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.errors import BadInput
from artifacts.fields import Count
from artifacts.patterns import files_fitting
from artifacts.validation import shown
from stages.evaluate.task_files import reached

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow")
"""Endings of the files that a local mirror may hold."""
Limit = Annotated[Count, Field(gt=0)] | Annotated[float, Field(gt=0, lt=1)]
UNNAMED = r"[^A-Za-z0-9_.-]"
"""What stands in no name."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]*$", max_length=80)]


class LmEvalTask(BaseModel):
    """Any task or group that lm-eval knows, or a YAML file in its format."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    task: str = Field(min_length=1)
    """Its name in lm-eval, such as gsm8k or leaderboard, or the path of a .yaml file. Python that a
    file of your own names with !function is run; it belongs beside the file, whose folder's modules
    and YAML are hashed with it."""
    name: Name = ""
    """The task's name in the report; by default lm-eval's."""
    data: Literal["mirror", "hub"]
    """mirror: files below `path`. hub: the Hugging Face hub, if `allow_network` is set."""
    path: Path | None = None
    """For mirror, a folder that holds the datasets: OWNER/NAME/CONFIGURATION/SPLIT.csv (or .jsonl,
    .parquet, the hub's own names of files, or a dataset written by `save_to_disk`). Folders that
    hold nothing else may be left out, so one dataset's files may lie in `path` itself."""
    num_fewshot: Count | None = Field(None, ge=0)
    """Worked examples before each question; by default the task's own number."""
    limit: Limit | None = None
    """Questions of each of its tasks, the first ones: a number from 1, or a share below 1."""

    @model_validator(mode="after")
    def _consistent(self) -> "LmEvalTask":
        if self.data == "mirror" and self.path is None:
            raise ValueError("path is missing; data: mirror needs the folder")
        if self.data == "hub" and self.path is not None:
            raise ValueError(f"path is {str(self.path)!r}; data: hub takes none")
        return self

    @property
    def title(self) -> str:
        """The task's name in the report."""
        own = Path(self.task).stem if self.is_file else self.task
        return self.name or re.sub(UNNAMED, "_", own)

    @property
    def is_file(self) -> bool:
        """Whether it is a YAML file rather than a name."""
        return self.task.endswith((".yaml", ".yml"))

    def files(self) -> list[Path]:
        """What it reads. Raises BadInput for what is missing."""
        found: list[Path] = []
        problems: list[str] = []
        if self.is_file:
            try:
                found = reached(Path(self.task), f"tasks.{self.title}.task")
            except BadInput as error:
                problems += error.problems
        if self.path is not None:
            tables = sorted(p for p in self.path.rglob("*") if p.is_file() and p.suffix in TABLES)
            if not tables:
                problems.append(
                    f"tasks.{self.title}.path: {self.path} holds no file ending in "
                    f"{', '.join(TABLES)}"
                )
            found += [path for path in tables if path not in found]
        if problems:
            raise BadInput(*problems)
        return found


class TextTask(BaseModel):
    """Held-out text: bits per byte, which compares models whatever their tokenizers."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    texts: tuple[str, ...] = Field(min_length=1)
    """Files or patterns: .jsonl has a text in each line's field `text`, any other file is one."""
    name: Name = "text"
    """The task's name in the report."""
    data: Literal["files"] = "files"
    limit: Count | None = Field(None, gt=0)
    """Texts to read, the first ones."""

    @property
    def title(self) -> str:
        """The task's name in the report."""
        return self.name

    def files(self) -> list[Path]:
        """What it reads, in order. Raises BadInput for a pattern that fits no file."""
        found: dict[Path, None] = {}
        problems = []
        for pattern in self.texts:
            files = files_fitting(pattern)
            if not files:
                problems.append(f"tasks.{self.title}.texts: no file fits {pattern!r}")
            found.update(dict.fromkeys(files))
        if problems:
            raise BadInput(*problems)
        return list(found)


def read_texts(config: TextTask) -> list[tuple[str, str]]:
    """(file's name, text) of every text. Raises BadInput naming file and line."""
    found: list[tuple[str, str]] = []
    problems = []
    for path in config.files():
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            problems.append(f"{path}: is not UTF-8 (byte {error.start})")
            continue
        if path.suffix != ".jsonl":
            found.append((path.name, content))
            continue
        for number, line in enumerate(content.splitlines(), 1):
            try:
                text = json.loads(line)["text"]
            except (ValueError, TypeError, KeyError):
                text = None
            if not isinstance(text, str):
                problems.append(f"{path}:{number}: is {shown(line)}; an object with text is right")
            else:
                found.append((path.name, text))
    if problems:
        raise BadInput(*problems)
    found = [(name, text) for name, text in found if text]
    if not found:
        raise BadInput(f"tasks.{config.title}.texts: hold no text")
    return found[: config.limit]


def kind_of(value: Any) -> str:
    """Which kind of task a config means. The tags begin with function-, which keeps them out of the
    sentences about what is wrong (see `artifacts.validation`)."""
    keys = value if isinstance(value, dict) else getattr(type(value), "model_fields", {})
    if "task" in keys:
        return "function-task"
    return "function-texts" if "texts" in keys else "function-suite"
