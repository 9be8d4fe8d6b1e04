"""Pydantic's findings as sentences: the field's path, the value, and what would be right."""

from typing import Any

from pydantic import BaseModel, ValidationError


def sentences(error: ValidationError, section: str = "") -> list[str]:
    """One sentence for each problem in `error`; `section` is put before each field's path."""
    return [_sentence(problem, section) for problem in error.errors()]


def _sentence(problem: Any, section: str) -> str:
    # Pydantic puts the chosen branch of a union into the path; users do not write that part.
    parts = [str(part) for part in problem["loc"] if not str(part).startswith("function-")]
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
