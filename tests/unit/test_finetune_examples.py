"""Reading instruction data: both forms, both file kinds, and every error with file and line."""

import json
from pathlib import Path

import pytest

from artifacts.errors import BadInput
from stages.finetune.examples import Turn, read_examples

ALPACA = {"instruction": "Say hi.", "input": "", "output": "Hi."}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
    ]
}


def write(tmp_path: Path, *lines: str, name: str = "data.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_alpaca_lines_with_and_without_input(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        json.dumps(ALPACA | {"input": "to all"}),
        "",
        json.dumps({"instruction": "A", "output": "B", "source": "elsewhere"}),
        json.dumps({"instruction": "A", "output": "B", "input": None}),
    )
    examples = read_examples([path], "alpaca")
    assert examples[0].turns == (Turn("user", "Say hi.", "to all"), Turn("assistant", "Hi."))
    assert examples[1].turns == examples[2].turns == (Turn("user", "A"), Turn("assistant", "B"))
    assert [example.where for example in examples] == [f"{path}:1", f"{path}:3", f"{path}:4"]


def test_an_array_over_many_lines(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps([ALPACA, ALPACA], indent=2), name="data.json")
    assert [one.where for one in read_examples([path], "alpaca")] == [f"{path}[0]", f"{path}[1]"]


def test_messages(tmp_path: Path) -> None:
    (example,) = read_examples([write(tmp_path, json.dumps(CHAT))], "messages")
    assert [turn.role for turn in example.turns] == ["system", "user", "assistant"]


def test_sharegpt_and_completion(tmp_path: Path) -> None:
    record = {
        "system": "Be brief.",
        "conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."}],
    }
    (example,) = read_examples([write(tmp_path, json.dumps(record))], "sharegpt")
    assert example.turns == (
        Turn("system", "Be brief."),
        Turn("user", "Hi."),
        Turn("assistant", "Hello."),
    )
    line = json.dumps({"prompt": "One, two,", "completion": " three"})
    (example,) = read_examples([write(tmp_path, line)], "completion")
    assert example.turns == (Turn("user", "One, two,"), Turn("assistant", " three"))


@pytest.mark.parametrize(
    ("record", "form", "said"),
    [
        ({"conversations": []}, "sharegpt", "conversations must be a list of {from, value}"),
        ({"conversations": [{"from": "x", "value": "a"}]}, "sharegpt", "conversations[0].from is"),
        ({"conversations": [{"from": "human"}]}, "sharegpt", "with value a text"),
        ({"prompt": "a"}, "completion", "completion must be a text"),
    ],
)
def test_what_is_no_sharegpt_and_no_completion(
    tmp_path: Path, record: dict, form: str, said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        read_examples([write(tmp_path, json.dumps(record))], form)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    line = json.dumps(ALPACA | {"output": "one\u2028two\x85three"}, ensure_ascii=False)
    (example,) = read_examples([write(tmp_path, line)], "alpaca")
    assert example.turns[1].content == "one\u2028two\x85three"


@pytest.mark.parametrize(
    ("line", "form", "said"),
    [
        ('{"instruction": "A", "output": ', "alpaca", ":2: is no JSON"),
        ("[1, 2]", "alpaca", ":2: is no JSON object"),
        ('{"instruction": "A"}', "alpaca", ":2: output must be a text"),
        ('{"instruction": 3, "output": "B"}', "alpaca", ":2: instruction must be a text"),
        ('{"instruction": "A", "output": "B", "input": 1}', "alpaca", ":2: input must be a text"),
        ('{"prompt": "A"}', "messages", ":2: messages must be a list"),
        ('{"messages": []}', "messages", ":2: messages must be a list"),
        ('{"messages": [{"role": "user"}]}', "messages", r":2: messages\[0\] must be"),
        (
            '{"messages": [{"role": "bot", "content": ""}]}',
            "messages",
            r":2: messages\[0\].role is 'bot', not system or user or assistant",
        ),
    ],
)
def test_a_broken_line_is_named_with_its_number(
    tmp_path: Path, line: str, form: str, said: str
) -> None:
    good = json.dumps(ALPACA if form == "alpaca" else CHAT)
    with pytest.raises(BadInput, match=said):
        read_examples([write(tmp_path, good, line, good)], form)  # type: ignore[arg-type]


def test_several_problems_are_named_together_and_the_rest_is_counted(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_examples([write(tmp_path, *["{}"] * 25)], "alpaca")
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 5 more of the kind"


def test_empty_and_undecodable_files(tmp_path: Path) -> None:
    empty, nothing = write(tmp_path, ""), write(tmp_path, "[]", name="nothing.json")
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b'{"a": 1}\n\xff\xfe')
    with pytest.raises(BadInput) as caught:
        read_examples([empty, nothing, binary, tmp_path / "absent"], "alpaca")
    said = str(caught.value)
    assert f"{empty}: holds no example" in said
    assert f"{nothing}: holds no example" in said
    assert f"{binary}:2: is not UTF-8" in said
    assert "absent: cannot be read" in said
