"""Instruction data as people have it, in JSON or JSON lines.

alpaca {instruction, input, output}; messages {messages: [{role, content}]}; sharegpt
{conversations: [{from, value}]}; completion {prompt, completion}.

What is no record at all is an error with file and line; whether a record is worth learning from is
judged later, in `dataset.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from artifacts.errors import BadInput
from artifacts.json_files import parse_json
from artifacts.validation import shown

Format = Literal["alpaca", "messages", "sharegpt", "completion"]
ROLES = ("system", "user", "assistant")
SPEAKERS = {
    **{role: role for role in ROLES},
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}
"""What sharegpt's `from` may say -> the role."""
TURNS = {
    "messages": ("messages", "role", "content"),
    "sharegpt": ("conversations", "from", "value"),
}
"""Form of conversations -> keys of the list, of the speaker and of the text."""
SHOWN = 20
"""Problems named in full before the rest is only counted."""


@dataclass(frozen=True)
class Turn:
    """One party's words."""

    role: str
    content: str
    context: str = ""
    """Alpaca's `input`: the material that the instruction is about."""


@dataclass(frozen=True)
class Example:
    """One conversation, with the place it was read from."""

    where: str
    turns: tuple[Turn, ...]


def read_examples(files: list[Path], form: Format) -> list[Example]:
    """All examples of the files, in order. Raises BadInput naming file and line of what is wrong.

    A file whose first character is `[` is one JSON array, any other holds a JSON object a line.
    """
    examples: list[Example] = []
    problems: list[str] = []
    for path in files:
        before = len(examples) + len(problems)
        try:
            for where, record in _records(path):
                problem = _problem_with(record, form)
                if problem:
                    problems.append(f"{where}: {problem}")
                else:
                    examples.append(Example(where, _turns(record, form)))
        except BadInput as error:
            problems += error.problems
        if len(examples) + len(problems) == before:
            problems.append(f"{path}: holds no example")
    if problems:
        more = len(problems) - SHOWN
        raise BadInput(*problems[:SHOWN], *([f"and {more} more of the kind"] if more > 0 else []))
    return examples


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Every record with its place: `file:line` in JSON lines, `file[index]` in an array."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}:{number}: is not UTF-8") from None
    if text.lstrip()[:1] == "[":
        records = parse_json(text, str(path))
        yield from ((f"{path}[{index}]", record) for index, record in enumerate(records))
        return
    # Not splitlines: U+2028 and its like are no line ends in JSON lines.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        yield f"{path}:{number}", parse_json(line, f"{path}:{number}")


def _problem_with(record: Any, form: Format) -> str | None:
    if not isinstance(record, dict):
        return "is no JSON object"
    if form == "alpaca":
        for key in ("instruction", "output"):
            if not isinstance(record.get(key), str):
                return f"{key} must be a text, as in {{instruction, input, output}}"
        if not isinstance(record.get("input"), str | None):
            return "input must be a text or left out"
        return None
    if form == "completion":
        for key in ("prompt", "completion"):
            if not isinstance(record.get(key), str):
                return f"{key} must be a text, as in {{prompt, completion}}"
        return None
    whole, who, what = TURNS[form]
    turns = record.get(whole)
    known = ROLES if form == "messages" else tuple(SPEAKERS)
    if not isinstance(turns, list) or not turns:
        return f"{whole} must be a list of {{{who}, {what}}}"
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict) or not isinstance(turn.get(what), str):
            return f"{whole}[{index}] must be {{{who}, {what}}} with {what} a text"
        if turn.get(who) not in known:
            return f"{whole}[{index}].{who} is {shown(turn.get(who))}, not " + " or ".join(known)
    return None


def _turns(record: dict[str, Any], form: Format) -> tuple[Turn, ...]:
    if form == "alpaca":
        user = Turn("user", record["instruction"], record.get("input") or "")
        return user, Turn("assistant", record["output"])
    if form == "completion":
        return Turn("user", record["prompt"]), Turn("assistant", record["completion"])
    whole, who, what = TURNS[form]
    found = [(SPEAKERS[turn[who]], turn[what]) for turn in record[whole]]
    if form == "sharegpt" and isinstance(record.get("system"), str) and record["system"]:
        found.insert(0, ("system", record["system"]))
    return tuple(Turn(role, text) for role, text in found)
