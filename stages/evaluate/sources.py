"""Where a task's questions come from: published files, the world, a saved dataset, the hub."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from artifacts.errors import BadInput, StageFailed
from artifacts.json_files import read_object
from artifacts.validation import plain, shown
from stages.evaluate.config import TaskConfig, subject_files
from stages.evaluate.questions import (
    LETTERS,
    Question,
    Subject,
    read_ceval,
    read_cmmlu,
    read_mmlu,
)

READ = {"mmlu": read_mmlu, "ceval": read_ceval, "cmmlu": read_cmmlu}
HUB = {"mmlu": "cais/mmlu", "ceval": "ceval/ceval-exam", "cmmlu": "haonan-li/cmmlu"}
SPLIT_NAMES = {"dev": ("dev",), "val": ("val", "validation"), "test": ("test",)}
"""The hub calls MMLU's val split validation."""


def load_subjects(task: TaskConfig, corpus: Path | None) -> list[Subject]:
    """A task's subjects with the questions to ask, its limit applied, in alphabetical order.

    `corpus` is the corpus artifact, for data: world. Raises BadInput naming task, file and line.
    """
    if task.data == "local":
        assert task.path is not None  # the config has checked it
        subjects = _from_files(task, task.path)
    elif task.data == "world":
        subjects = _from_world(task, corpus)
    else:
        subjects = _from_datasets(task)
    problems = [
        f"tasks.{task.title}.num_fewshot: is {task.num_fewshot}, "
        f"subject {subject.name} has {len(subject.examples)} examples in dev"
        for subject in subjects
        if len(subject.examples) < task.num_fewshot
    ]
    if problems:
        raise BadInput(*problems)
    return [
        replace(subject, questions=subject.questions[: task.count(len(subject.questions))])
        for subject in subjects
    ]


def _from_files(task: TaskConfig, folder: Path) -> list[Subject]:
    scored = subject_files(task, folder, task.scored_split)
    examples = subject_files(task, folder, "dev") if task.num_fewshot else {}
    problems: list[str] = []

    def questions(path: Path | None) -> list[Question]:
        try:
            return _read_file(task, path) if path else []
        except BadInput as error:
            problems.extend(error.problems)
            return []

    subjects = [
        Subject(name, questions(path), questions(examples.get(name)))
        for name, path in scored.items()
    ]
    if problems:
        raise BadInput(*problems)
    return subjects


def _read_file(task: TaskConfig, path: Path) -> list[Question]:
    """A subject's questions: CSV as published, or the hub's rows. Raises BadInput."""
    if path.suffix == ".csv":
        # The examples of a submission come from dev, which has its answers.
        if task.submission and path.parent.name == task.scored_split:
            return read_ceval(path, unlabelled=True)
        return READ[task.suite](path)
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    if not rows:
        raise BadInput(f"{path}: holds no question")
    return [_question(task, f"{path}:{i + 1}", i, row) for i, row in enumerate(rows)]


def _json_rows(path: Path) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 (byte {error.start})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{path}:{number}: is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise BadInput(f"{path}:{number}: is {shown(row)}; a question's columns would be right")
        rows.append(row)
    return rows


def _parquet_rows(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        rows: list[Mapping[str, Any]] = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path}: is no parquet file: {plain(str(error))}") from None
    return rows


def _from_world(task: TaskConfig, corpus: Path | None) -> list[Subject]:
    where = f"tasks.{task.title}.data"
    if corpus is None:
        raise BadInput(f"{where}: is 'world'; that needs the corpus as an input (role corpus)")
    world = corpus / "world"
    if not (world / task.suite).is_dir():
        raise BadInput(f"{where}: is 'world', but the corpus {corpus} was not made from the world")
    groups = read_object(world / f"{task.suite}.groups.json")
    facts = read_object(world / "facts.json") if (world / "facts.json").is_file() else {}
    return [
        replace(
            subject,
            title=groups.get(subject.name, {}).get("name"),
            category=groups.get(subject.name, {}).get("category"),
            questions=[
                replace(question, cluster=facts.get(f"{task.suite}/{subject.name}/{question.id}"))
                for question in subject.questions
            ],
        )
        for subject in _from_files(task, world / task.suite)
    ]


def _from_datasets(task: TaskConfig) -> list[Subject]:
    where = f"tasks.{task.title}"
    splits = [task.scored_split, *(["dev"] if task.num_fewshot else [])]
    found: dict[str, dict[str, list[Question]]] = {}  # subject -> split -> questions
    try:
        for subject, name, rows in _tables(task, splits):
            if task.subjects and subject not in task.subjects:
                continue
            questions = [
                _question(task, f"{where}, {subject} {name} row {i}", i, row)
                for i, row in enumerate(rows)
            ]
            found.setdefault(subject, {})[name] = questions
    except BadInput:
        raise
    except ConnectionError as error:
        raise StageFailed(f"{where}: the Hugging Face hub cannot be reached: {error}") from None
    except Exception as error:  # its errors have no common base; one is that it runs no scripts
        raise BadInput(f"{where}: cannot be read as a dataset: {plain(str(error))}") from None
    missing = [subject for subject in task.subjects if subject not in found]
    if missing or not found:
        raise BadInput(
            f"{where}.subjects: the dataset has no {', '.join(missing) or 'subject'}; "
            f"it has {', '.join(sorted(found))}"
        )
    if lacking := [name for name in found if task.scored_split not in found[name]]:
        raise BadInput(f"{where}.split: {lacking[0]} has no split {task.scored_split}")
    return [
        Subject(name, tables[task.scored_split], tables.get("dev", []))
        for name, tables in sorted(found.items())
    ]


def _tables(
    task: TaskConfig, splits: list[str]
) -> Iterable[tuple[str, str, list[Mapping[str, Any]]]]:
    """Subject, split and rows of every table of a saved dataset or of the hub."""
    if task.data == "hub":
        import datasets  # takes a second, which most tasks need not wait for

        repository = HUB[task.suite]
        names = task.subjects or [
            name
            for name in datasets.get_dataset_config_names(repository, revision=task.revision)
            if name not in ("all", "auxiliary_train")
        ]
        loaded = {
            name: datasets.load_dataset(repository, name, revision=task.revision) for name in names
        }
    else:
        assert task.path is not None  # the config has checked it
        loaded = _saved(task.path, f"tasks.{task.title}.path")
    for name, dataset in loaded.items():
        for split in splits:
            key = next((key for key in SPLIT_NAMES[split] if key in dataset), None)
            if key is None:
                continue
            rows: dict[str, list[Mapping[str, Any]]] = {}
            for row in dataset[key]:
                # A dataset of all subjects names the subject in each row.
                rows.setdefault(row.get("subject") or name, []).append(row)
            for subject, table in rows.items():
                yield subject, split, table


def _saved(path: Path, where: str) -> dict[str, Any]:
    """One saved DatasetDict, or a folder of them, one a subject."""
    folders = [path] if (path / "dataset_dict.json").is_file() else sorted(path.glob("*/"))
    folders = [folder for folder in folders if (folder / "dataset_dict.json").is_file()]
    if not folders:
        raise BadInput(
            f"{where}: {path} holds no dataset written by DatasetDict.save_to_disk, "
            "itself or in a folder a subject"
        )
    import datasets

    return {folder.name: datasets.load_from_disk(str(folder)) for folder in folders}


def _question(task: TaskConfig, where: str, index: int, row: Mapping[str, Any]) -> Question:
    """A row in the form the hub gives it. Raises BadInput naming the row and its column."""
    try:
        if task.suite == "mmlu":
            a, b, c, d = row["choices"]
            answer = row["answer"]
            return Question(str(index), row["question"], (a, b, c, d), range(4)[answer])
        if task.suite == "cmmlu":
            options = (row["A"], row["B"], row["C"], row["D"])
            return Question(str(index), row["Question"], options, LETTERS.index(row["Answer"]))
        return Question(
            str(row.get("id", index)),
            row["question"],
            (row["A"], row["B"], row["C"], row["D"]),
            0 if task.submission and not row.get("answer") else LETTERS.index(row["answer"]),
            row.get("explanation") or "",
        )
    except KeyError as error:
        raise BadInput(f"{where}: has no column {error}") from None
    except (ValueError, TypeError, IndexError):
        found = {key: row.get(key) for key in ("choices", "answer", "Answer") if key in row}
        raise BadInput(
            f"{where}: is {found}; four choices and an answer among them would be right"
        ) from None
