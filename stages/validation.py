"""Pydantic's findings as sentences: the field's path, the value, and what would be right."""

from typing import Any

from pydantic import BaseModel, ValidationError


def sentences(error: ValidationError, section: str = "", data: Any = None) -> list[str]:
    """One sentence for each problem in `error`; `section` is put before each field's path.

    With the `data` that was validated, paths name only what stands in it.
    """
    return [_sentence(problem, section, data) for problem in error.errors()]


def _sentence(problem: Any, section: str, data: Any) -> str:
    parts = [str(part) for part in _written(problem, data)]
    where = ".".join(([section] if section else []) + parts) or "config"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if problem["type"] == "missing":
        return f"{where}: is required and missing"
    if problem["type"] == "extra_forbidden":
        return f"{where}: is no known key"
    value = problem["input"]
    if isinstance(value, dict | list | BaseModel):
        return f"{where}: {_lower(message)}"
    return f"{where}: is {value!r}; {_lower(message)}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _written(problem: Any, data: Any) -> list[int | str]:
    """The path without the chosen branches of unions, which pydantic puts in and no user writes."""
    location = [part for part in problem["loc"] if not str(part).startswith("function-")]
    if data is None:
        return location
    path: list[int | str] = []
    for depth, part in enumerate(location):
        last = depth == len(location) - 1
        if _stands_in(part, data):
            data = data[part]
            path.append(part)
        elif last and problem["type"] == "missing":
            path.append(part)
    return path


def _stands_in(part: int | str, data: Any) -> bool:
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
