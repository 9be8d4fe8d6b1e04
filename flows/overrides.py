"""`--set key.path=value`: one value of the config replaced from the command line."""

from collections.abc import Iterable
from typing import Any

from artifacts.errors import BadInput
from artifacts.validation import plain, shown
from artifacts.yaml_text import parse_yaml


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> None:
    """Change `data` in place. Values are YAML; a number in the path picks an entry of a list.

    Sections that are not there yet are made, so that a value may override a default. An empty
    value is null. Raises BadInput with all problems.
    """
    problems = []
    for override in overrides:
        try:
            path, value = parse_override(override)
            _put(data, path, value, f"--set {plain(override)}")
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)


def parse_override(override: str) -> tuple[list[str], Any]:
    """Split `key.path=value` into the path's parts and the value. Raises BadInput."""
    where = f"--set {plain(override)}"
    key, equals, text = override.partition("=")
    if not equals:
        raise BadInput(f"{where}: has no '=', write key.path=value")
    path = [part.strip() for part in key.split(".")]
    if not all(path):
        raise BadInput(f"{where}: {key.strip()!r} is no path, write key.path=value")
    return path, parse_yaml(text, where)


def _put(target: Any, path: list[str], value: Any, where: str) -> None:
    for depth, part in enumerate(path):
        here = plain(".".join(path[:depth])) or "the config"
        last = depth == len(path) - 1
        if isinstance(target, list):
            if not (part.isdecimal() and len(part) < 10) or int(part) >= len(target):
                known = f"0 to {len(target) - 1}" if target else "its entries, it is empty"
                raise BadInput(f"{where}: {here} is a list, {shown(part)} is none of {known}")
            key: Any = int(part)
        elif isinstance(target, dict):
            key = part
        else:
            raise BadInput(f"{where}: {here} is {shown(target)}, so it has no {shown(part)}")
        if last:
            target[key] = value
            return
        if isinstance(target, dict) and target.get(key) is None:
            target[key] = {}
        target = target[key]
