"""What a config file may hold, and that what it may not hold is refused by line."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadInput
from artifacts.validation import LONGEST, shown
from artifacts.yaml_text import parse_yaml

DOUBLED = ["k0: &k0 {x: 1}", *(f"k{i}: &k{i} {{<<: [*k{i - 1}, *k{i - 1}]}}" for i in range(1, 40))]
"""Each line merges the one before twice."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4e-3", 0.004),
        ("1e5", 1e5),
        ("-.5", -0.5),
        ("3", 3),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        (".nan", ".nan"),
        (".inf", ".inf"),
        ("'3'", "3"),
        ("[1, a, 2.5]", [1, "a", 2.5]),
        ("{a: {b: [1]}}", {"a": {"b": [1]}}),
        ("base: &b {x: 1}\nmore: {<<: *b, y: 2}", {"base": {"x": 1}, "more": {"x": 1, "y": 2}}),
    ],
)
def test_scalars_are_read_as_they_look(text, value):
    assert parse_yaml(text, "c.yaml") == value
    assert type(parse_yaml(text, "c.yaml")) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!python/object/apply:os.system [id]", ["line 1", "!!python/object/apply", "tags"]),
        ("x: 1\na: !include b", ["line 2", "!include"]),
        ("a: !!str 3", ["line 1", "tags"]),
        ("a: 1\nb: 2\na: 3", ["line 3", "a is said twice", "line 1"]),
        ("s:\n  k: 1\n  k: 2", ["line 3", "k is said twice", "line 2"]),
        ("1: x", ["line 1", "plain text"]),
        ("[a]: x", ["line 1", "plain text"]),
        ("a: [1,", ["line", "no YAML"]),
        ("a: *nowhere", ["no YAML", "nowhere"]),
        ("a: b: c", ["line 1", "no YAML"]),
        ("a: 1\n--- \nb: 2", ["no YAML"]),
        ("a: \x07", ["no YAML"]),
        ("[" * 3000, ["nested too deeply"]),
        ("a: &a [*a]", ["nested within itself"]),
        ("\n".join(DOUBLED), ["more than 100000 values"]),
        ("a: " + "x" * (1 << 20), ["longer than 1 MiB"]),
    ],
)
def test_what_a_config_may_not_hold(text, words):
    with pytest.raises(BadInput) as caught:
        parse_yaml(text, "c.yaml")
    message = str(caught.value)
    assert message.startswith("c.yaml: ")
    for word in words:
        assert word in message


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False).filter(lambda x: abs(x) != float("inf")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=12,
)


@given(plain)
def test_reads_back_what_any_dumper_quoted(value):
    text = yaml.safe_dump(value, default_style='"', allow_unicode=True)
    # A dumper in this style marks every scalar that is no text with a tag, which is refused.
    if "!!" in text:
        text = yaml.safe_dump(_as_text(value), default_style='"', allow_unicode=True)
        value = _as_text(value)
    assert parse_yaml(text, "c") == value


def _as_text(value):
    if isinstance(value, dict):
        return {key: _as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return str(value)


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_sentence(text):
    try:
        parse_yaml(text, "c")
    except BadInput as error:
        refusal = str(error)
    else:
        return
    assert refusal.startswith("c: ")


def test_of_a_structure_only_the_beginning_is_shown():
    value = ["a", "a"]
    for _ in range(100):
        value = [value] * 10
    assert len(shown(value)) <= LONGEST
