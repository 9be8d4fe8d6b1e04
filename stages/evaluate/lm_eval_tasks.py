"""Any of lm-eval's tasks, found without its index of 14,000, over local mirrors of its datasets.

Building that index takes 15 seconds. A task's file is named after it, and a group stands in one
folder with its tasks, so that folder alone is indexed. Only where this fails is the whole.
"""

import contextlib
import re
import socket
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import lm_eval
from lm_eval.api.task import Task
from lm_eval.tasks.manager import TaskManager

from artifacts.errors import BadInput
from artifacts.validation import plain, shown
from stages.evaluate.other_tasks import TABLES, LmEvalTask

ROOT = Path(lm_eval.__file__).parent / "tasks"
FEWSHOT_SEED = 1234
"""Chooses examples where a task draws them at random; lm-eval's own default."""
READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json"} | {
    ".parquet": "parquet",
    ".arrow": "arrow",
}
LOAD = datasets.load_dataset
SPLIT = re.compile(r"^(?P<split>[A-Za-z_]+?)(-\d{5}-of-\d{5})?$")


def load(config: LmEvalTask, *, allow_network: bool = False) -> dict[str, Any]:
    """lm-eval's `{"tasks": ..., "groups": ...}` for the task. Raises BadInput if there is none, its
    dataset is not there, or its code would download something without leave."""
    where = f"tasks.{config.title}"
    with _mirror(config), contextlib.nullcontext() if allow_network else _no_network():
        try:
            loaded: dict[str, Any] = _load(config)
        except BadInput:
            raise
        except _HostWanted as error:
            raise BadInput(
                f"{where}.task: {config.task} would download what is not on this machine, from "
                f"{plain(str(error))}{_wanted_by(error, config)}; put it there, or set "
                "allow_network: true"
            ) from None
        except ImportError as error:
            raise BadInput(f"{where}.task: {config.task} needs a package: {error}") from None
        except Exception as error:  # whatever a task's file and the datasets' readers raise
            said = plain(f"{type(error).__name__}: {error}".splitlines()[0])
            raise BadInput(f"{where}: {config.task} cannot be loaded: {said}") from None
    for task in loaded["tasks"].values():
        if config.num_fewshot is not None:
            task.set_config(key="num_fewshot", value=config.num_fewshot)
        elif task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=FEWSHOT_SEED)
    return loaded


def _load(config: LmEvalTask) -> Any:
    if config.is_file:
        path = Path(config.task)
        name = _name_in(path)
        return TaskManager(include_path=[str(path.parent)], include_defaults=False).load([name])
    folder = _folder(config.task)
    if folder is None:
        raise BadInput(
            f"tasks.{config.title}.task: is {shown(config.task)}; lm-eval has no task, group or "
            "tag of this name (`lm-eval ls tasks` lists them)"
        )
    manager = TaskManager(include_path=[str(folder)], include_defaults=False)
    try:
        return manager.load([config.task])
    except (KeyError, ValueError):  # a group with members elsewhere
        return TaskManager().load([config.task])


def _folder(name: str) -> Path | None:
    """The folder of tasks/ in which a task, group or tag of this name is defined."""
    pattern = re.compile(
        rb"^\s*(?:[\"']?(?:task|group|tag)[\"']?:\s*|-\s*)[\"']?"
        + re.escape(name.encode())
        + rb"[\"']?\s*(?:#.*)?$",
        re.MULTILINE,
    )
    own = [path for stem in (name, f"_{name}") for path in ROOT.rglob(f"{stem}.yaml")]
    first = ROOT / name.partition("_")[0]
    near = first.rglob("*.yaml") if first.is_dir() else []
    for candidates in (own, near, ROOT.rglob("*.yaml")):
        for path in candidates:
            if pattern.search(path.read_bytes()):
                return ROOT / path.relative_to(ROOT).parts[0]
    return None


def _name_in(path: Path) -> str:
    found = re.search(
        r"^(?:task|group):\s*[\"']?([^\s\"'#]+)", path.read_text("utf-8"), re.MULTILINE
    )
    if found is None:
        raise BadInput(f"{path}: names no task; lm-eval's format begins with task: NAME")
    return found.group(1)


class _HostWanted(Exception):
    """Code of a task asked for a host, named here. No OSError: downloaders catch those."""


@contextlib.contextmanager
def _no_network() -> Iterator[None]:
    """Inside, whoever looks a host up gets _HostWanted: tasks' modules download when imported."""
    honest = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **how: Any) -> Any:
        raise _HostWanted(host)

    socket.getaddrinfo = getaddrinfo
    try:
        yield
    finally:
        socket.getaddrinfo = honest


def _wanted_by(error: _HostWanted, config: LmEvalTask) -> str:
    """The line of a task's code that led there."""
    folders = (ROOT, *([Path(config.task).resolve().parent] if config.is_file else []))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if frame.line and any(path.is_relative_to(folder) for folder in folders):
            return f" ({path.name}:{frame.lineno}: {shown(frame.line)})"
    return ""


@contextlib.contextmanager
def _mirror(config: LmEvalTask) -> Iterator[None]:
    """Inside, lm-eval's tasks find their datasets below `config.path`."""
    if config.path is None:
        yield
        return
    folder, honest = config.path, LOAD

    def load_dataset(path: str, name: str | None = None, **kwargs: Any) -> Any:
        if path in READERS.values() and "data_files" in kwargs:
            return honest(path, name, **kwargs)  # the task names files of its own
        return _read(folder, path, name, f"tasks.{config.title}.path")

    datasets.load_dataset = load_dataset
    try:
        yield
    finally:
        datasets.load_dataset = honest


def _read(folder: Path, path: str, name: str | None, where: str) -> Any:
    """A dataset's splits from the innermost folder there is for it."""
    parts = [*path.split("/"), *([name] if name else [])]
    places = [folder.joinpath(*parts[start:]) for start in range(len(parts))]
    places += [folder.joinpath(*parts[start:-1]) for start in range(len(parts))] if name else []
    for place in [*places, folder]:
        if not place.resolve().is_relative_to(folder.resolve()) or not place.is_dir():
            continue
        if (place / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(place))
        files: dict[str, list[str]] = {}
        for file in sorted(place.iterdir()):
            match = SPLIT.match(file.name.removesuffix(file.suffix))
            if file.is_file() and file.suffix in TABLES and match:
                files.setdefault(match["split"], []).append(str(file))
        if files:
            kinds = {READERS[Path(file).suffix] for paths in files.values() for file in paths}
            if len(kinds) > 1:
                raise BadInput(f"{where}: {place} mixes {', '.join(sorted(kinds))} files; one kind")
            return LOAD(kinds.pop(), data_files=files)
    raise BadInput(
        f"{where}: {folder} has no files of {path}"
        + (f", {name}" if name else "")
        + f"; {Path(*parts)}/SPLIT.csv (or .jsonl, .parquet) would do"
    )


def fit(task: Task, fits: Callable[[str, list[str]], bool]) -> None:
    """Make a task's prompts lose whole examples until they fit; `cut_items` and `cut_examples`
    count. What does not fit without any is left as it is, for the model to refuse."""
    honest = task.fewshot_context
    task.cut_items = task.cut_examples = 0

    def fewshot_context(doc: Any, num_fewshot: int, *args: Any, **how: Any) -> Any:
        for dropped in range(num_fewshot + 1):
            context = honest(doc, num_fewshot - dropped, *args, **how)
            if not isinstance(context, str) or fits(context, _answers(task, doc)):
                break
        task.cut_items += dropped > 0
        task.cut_examples += dropped
        return context

    task.fewshot_context = fewshot_context


def _answers(task: Task, doc: Any) -> list[str]:
    if task.OUTPUT_TYPE == "multiple_choice":
        return [f"{task.config.target_delimiter}{choice}" for choice in task.doc_to_choice(doc)]
    if task.OUTPUT_TYPE == "loglikelihood":
        return [f"{task.config.target_delimiter}{task.doc_to_target(doc)}"]
    return [" "]  # room for one token of what will be written
