"""JSON from outside: read whole, or refused in a sentence, whatever its bytes."""

import json
from pathlib import Path
from typing import Any

from artifacts.errors import BadInput

_SURROGATE = "\\ud"
"""How JSON begins to write half of a character, which no UTF-8 text can hold."""


def parse_json(text: str | bytes, where: str) -> Any:
    """The value that `text` holds. Raises BadInput, beginning with `where`."""
    try:
        if isinstance(text, bytes):  # json itself would take halves of characters, and UTF-16
            text = text.decode("utf-8-sig")
        value = json.loads(text)
        if _SURROGATE in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise BadInput(f"{where}: is no JSON: {error.msg} ({place}column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}: is no JSON: not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise BadInput(f"{where}: holds half a character, a surrogate without its pair") from None
    except ValueError:  # Python's own limit, against numbers that take hours to read
        raise BadInput(f"{where}: is no JSON: a number has thousands of digits") from None
    except RecursionError:
        raise BadInput(f"{where}: is no JSON: it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """The value that a file holds. Raises BadInput."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    return parse_json(data, str(path))


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds an object. Raises BadInput."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise BadInput(f"{path}: must hold an object, not {json_name(value)}")
    return value


def write_object(path: Path, value: dict[str, Any]) -> None:
    """Write an object as JSON that people can read."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def json_name(value: Any) -> str:
    """What JSON calls a value's type."""
    if value is None:
        return "null"
    names = {bool: "a truth value", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")
