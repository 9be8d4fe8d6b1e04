"""Pydantic's findings as sentences: the field's path, the value, and what would be right."""

import math
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

LONGEST = 120
"""Characters of a value that are shown; what is wrong with a longer one is seen by then."""
WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's words as YAML and JSON write them."""

_SHORT = reprlib.Repr()
"""Of a structure only the beginning is looked at: YAML's aliases make endless ones."""
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = LONGEST
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


def sentences(error: ValidationError, section: str = "", data: Any = None) -> list[str]:
    """One sentence for each problem in `error`; `section` is put before each field's path.

    With the `data` that was validated, paths name only what stands in it.
    """
    return [_sentence(problem, f"{section}." if section else "", data) for problem in _all(error)]


def file_sentences(error: ValidationError, where: object) -> list[str]:
    """The same for what a file holds: `file: field: is value; what would be right`."""
    return [_sentence(problem, f"{where}: ", None) for problem in _all(error)]


def shown(value: Any) -> str:
    """A value on one line and not too long: texts in quotes, the rest as YAML writes it."""
    if value is None or isinstance(value, bool):
        return WORDS[str(value)]
    try:
        text = _SHORT.repr(value) if isinstance(value, dict | list | tuple) else repr(value)
    except ValueError:  # Python's own limit on printing numbers
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def unfit(value: Any, where: str = "") -> Iterator[str]:
    """A sentence for every value in plain data that no setting can mean.

    JSON, hence a manifest, has no NaN and no infinity; no path and no name has a NUL character.
    """
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: is {value}; must be a finite number"
    elif isinstance(value, str | Path) and "\0" in str(value):
        yield f"{where}: is {shown(str(value))}; must not hold a NUL character"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from unfit(item, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from unfit(item, f"{where}.{i}")


def plain(text: str) -> str:
    """A user's own words as they are, unless they would break the line or fill the screen."""
    return text if text.isprintable() and len(text) <= LONGEST else shown(text)


def _all(error: ValidationError) -> list[Any]:
    return list(error.errors(include_url=False, include_context=False))


def _sentence(problem: Any, before: str, data: Any) -> str:
    path = ".".join(plain(str(part)) for part in _written(problem, data))
    where = f"{before}{path}" if path else before.rstrip(".: ") or "config"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if problem["type"] == "missing":
        return f"{where}: is required and missing"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where}: is no known key"
    if problem["type"] == "literal_error":
        message = re.sub(r"\b(True|False|None)\b", lambda word: WORDS[word[0]], message)
    if problem["type"] == "path_type":  # its message names Python's class
        message = "a path would be right"
    value = problem["input"]
    if problem["type"] == "json_invalid":
        return f"{where}: is no JSON: {message.removeprefix('Invalid JSON: ')}"
    if problem["type"] in ("model_type", "dict_type"):
        return f"{where}: is {shown(value)}; a mapping of settings would be right"
    if isinstance(value, dict | list | tuple | BaseModel):
        return f"{where}: {_lower(message)}"
    return f"{where}: is {shown(value)}; {_lower(message)}"


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
