"""Everything that can be found wrong before an engine is loaded, which takes seconds."""

from dataclasses import dataclass
from pathlib import Path

from artifacts.adapter import read_adapter
from artifacts.errors import BadInput
from artifacts.hf_model import read_model
from artifacts.manifest import read_manifest
from stages.evaluate.config import EvaluateConfig, TaskConfig
from stages.evaluate.other_tasks import TextTask, read_texts
from stages.evaluate.questions import Subject
from stages.evaluate.sources import load_subjects
from stages.evaluate.text import TextCodec


@dataclass(frozen=True)
class Questions:
    """What is asked, by the task's title."""

    subjects: dict[str, list[Subject]]
    texts: dict[str, list[tuple[str, str]]]
    """Held-out texts, each with its file's name."""


def read_questions(config: EvaluateConfig, corpus: Path | None) -> Questions:
    """Read all of it but lm-eval's tasks. Raises BadInput with the problems of all tasks."""
    problems: list[str] = []
    found = Questions({}, {})
    for task in config.tasks:
        try:
            if isinstance(task, TaskConfig):
                found.subjects[task.title] = load_subjects(task, corpus)
            elif isinstance(task, TextTask):
                found.texts[task.title] = read_texts(task)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    return found


def check_model(directory: Path, adapter: Path | None) -> list[str]:
    """Look through a model and its adapter; returns sentences about what is left aside.

    Raises BadInput for a model that is not sound, and for an adapter of another base.
    """
    manifest = read_manifest(directory)
    found = read_adapter(adapter) if adapter else None
    if found is not None:
        found.check_base(manifest)
    notes = list(found.notes) if found else []
    if manifest.kind != "onnx-bundle":  # loading a bundle looks through it, and quickly
        model = read_model(directory)
        notes += model.notes
        if found is not None:
            found.check_fits(model.architecture)
    return notes


def check_chat_template(codec: TextCodec, directory: Path) -> None:
    """Raise BadInput if there is no chat template, or it fails on a single question."""
    if codec.chat_template is None:
        raise BadInput(f"chat_template: is true; {directory} has no chat template, set it to false")
    codec.render_chat([{"role": "user", "content": "?"}], add_generation_prompt=True)
