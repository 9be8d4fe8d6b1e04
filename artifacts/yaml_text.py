"""YAML as a config needs it: plain values only, nothing said twice, YAML 1.2's reading of scalars.

PyYAML reads YAML 1.1, in which `no` is false, `1:30` is 90 and `4e-3` is a string. A config that
means something else than it seems to is worse than an error, so scalars follow YAML 1.2's core
schema here. Tags, which can name code to run, are refused.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from artifacts.errors import BadInput
from artifacts.validation import plain

MOST_BYTES = 1 << 20
"""A config needs a hundredth; PyYAML takes seconds for a megabyte."""

MOST_VALUES = 100_000
"""Values that a text may stand for, its aliases written out: some lines of them are billions."""

MOST_DIGITS = 400
"""More than any number needs; Python itself refuses to read some thousands."""


DEEPEST = 100
"""Mappings and lists within each other; a config needs a dozen."""


class _Loader(yaml.SafeLoader):
    """SafeLoader's node types with the scalar rules below; built without PyYAML's 1.1 rules."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own way)


_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
)
for _name, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), _first
    )


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    # SafeLoader's own reads 010 as octal eight.
    if len(node.value) > MOST_DIGITS:
        line = node.start_mark.line + 1
        raise BadInput(f"line {line}: a number has {len(node.value)} digits; no setting takes it")
    return int(node.value)


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or not key_node.tag.endswith(":str"):
            raise BadInput(f"line {line}: a key must be plain text")
        if key_node.value in seen:
            raise BadInput(
                f"line {line}: {plain(key_node.value)} is said twice, first in line "
                f"{seen[key_node.value]}"
            )
        seen[key_node.value] = line
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


def _construct_text(loader: _Loader, node: yaml.ScalarNode) -> str:
    try:  # "\\ud83d\\ude00" is one character in two halves, as JSON writes it
        return node.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise BadInput(
            f"line {node.start_mark.line + 1}: holds half a character, a surrogate without its pair"
        ) from None


_Loader.add_constructor("tag:yaml.org,2002:str", _construct_text)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


_BEGINS = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
_ENDS = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)


def read_yaml(path: Path) -> Any:
    """The value that a file holds. Raises BadInput."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 at byte {error.start}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """The value that `text` holds. Raises BadInput, beginning with `where`, naming the line."""
    if len(text) > MOST_BYTES:
        raise BadInput(f"{where}: is longer than {MOST_BYTES >> 20} MiB; a config is a page or two")
    try:
        depth = 0
        for token in yaml.scan(text, Loader=_Loader):
            depth += isinstance(token, _BEGINS) - isinstance(token, _ENDS)
            if depth > DEEPEST:
                raise BadInput(f"line {token.start_mark.line + 1}: is nested too deeply")
            if isinstance(token, yaml.TagToken):
                raise BadInput(
                    f"line {token.start_mark.line + 1}: holds the tag {_tag_text(token)}; "
                    "tags are not allowed, write plain values"
                )
        return _value(text)
    except BadInput as error:
        raise BadInput(*(f"{where}: {problem}" for problem in error.problems)) from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise BadInput(f"{where}: {line}is no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{where}: is no YAML: {reason}") from None
    except RecursionError:
        raise BadInput(f"{where}: is nested within itself") from None


def _value(text: str) -> Any:
    loader = _Loader(text)  # a SafeLoader: builds plain values only
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > MOST_VALUES:
            raise BadInput(f"holds more than {MOST_VALUES} values, its aliases written out")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Values below a node, each alias counted as what it stands for."""
    if id(node) not in known:
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for item in below for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(node)]


def _tag_text(token: yaml.TagToken) -> str:
    handle, suffix = token.value
    return f"{handle or ''}{suffix}"
