"""What a task in lm-eval's format reaches from its file: all of it decides about the scores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from artifacts.errors import BadInput
from artifacts.patterns import files_fitting

BESIDE = ("*.py", "*.yaml", "*.yml", "*_yaml")
"""Modules that `!function` names, and what is commonly included."""


class _Loader(yaml.SafeLoader):
    """Reads lm-eval's files without running what they name."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def reached(path: Path, where: str) -> list[Path]:
    """The file itself, then in order what it can reach: modules and YAML beside it (of a group,
    also in the folders below, where its tasks may be), the same of every file that it includes, and
    the data files that it names.

    Raises BadInput if it, or a file that it includes, is none.
    """
    found: set[Path] = set()
    waiting, seen, needed = [path], set[Path](), {path}
    while waiting:
        one = waiting.pop()
        if one.resolve() in seen:
            continue
        seen.add(one.resolve())
        if not one.is_file():
            if one not in needed:
                continue  # a neighbour's affair
            by = "" if one == path else f"{path} includes {one}, which "
            raise BadInput(f"{where}: {by or f'{one} '}is no file")
        said = _said(one)
        look = one.parent.rglob if "group" in said else one.parent.glob
        beside = {file for pattern in BESIDE for file in look(pattern) if _counts(file, one.parent)}
        found |= {one, *beside, *_data_files(said)}
        included = [one.parent / name for name in _texts(said.get("include"))]
        waiting += included
        needed |= set(included) if one in needed else set()
        if "group" in said:
            waiting += [file for file in beside if file.suffix == ".yaml"]
    return [path, *sorted(found - {path})]


def _said(path: Path) -> dict[str, Any]:
    """What a file says; nothing where it is no mapping in YAML, which lm-eval tells."""
    try:
        said = yaml.load(path.read_bytes(), _Loader)
    except (yaml.YAMLError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _counts(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.is_file() and not hidden


def _data_files(said: dict[str, Any]) -> Iterator[Path]:
    options = said.get("dataset_kwargs")
    named = options.get("data_files") if isinstance(options, dict) else None
    for value in named.values() if isinstance(named, dict) else [named]:
        for pattern in _texts(value):
            yield from files_fitting(pattern)


def _texts(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
