"""One YAML file and its overrides: every problem in one go, each with field, value and remedy."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from artifacts.errors import BadInput
from flows.config import check_config, load_config
from flows.overrides import apply_overrides, parse_override


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Text(Strict):
    type: Literal["text"]
    files: list[Path]


class World(Strict):
    type: Literal["world"]
    countries: int = 8


class Corpus(Strict):
    source: Annotated[Text | World, Field(discriminator="type")]
    vocab_size: int = Field(300, ge=260)


class Task(Strict):
    name: str
    limit: int | None = None


class Run(Strict):
    name: str = "run"
    corpus: Corpus
    tasks: list[Task] = []
    rate: float = 0.1
    extra: dict[str, float] = {}


GOOD = "corpus: {source: {type: world}}\ntasks:\n- {name: a}\n- {name: b}\n"


def write(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path, *overrides):
    with pytest.raises(BadInput) as caught:
        load_config(Run, path, overrides)
    return caught.value.problems


def test_overrides_reach_sections_lists_and_defaults(tmp_path):
    path = write(tmp_path, GOOD)
    config = load_config(
        Run,
        path,
        ["tasks.1.limit=5", "corpus.vocab_size = 512", "rate=4e-3", "extra.x=1", "name='7'"],
    )
    assert [task.limit for task in config.tasks] == [None, 5]
    assert (config.corpus.vocab_size, config.rate, config.name) == (512, 0.004, "7")
    assert config.extra == {"x": 1.0}


def test_all_problems_are_told_at_once_with_hints(tmp_path):
    text = (
        "corpus: {source: {type: world, country: 4}, vocab_size: 3}\n"
        "tasks:\n- {name: a, limits: 2}\n- {}\nrate: fast\nconvrt: {}\n"
    )
    found = "\n".join(problems(write(tmp_path, text)))
    assert "country: is no known key; did you mean countries?" in found
    assert "corpus.vocab_size: is 3; " in found
    assert "260" in found
    assert "tasks.0.limits: is no known key; did you mean limit?" in found
    assert "tasks.1.name: is required and missing" in found
    assert "rate: is 'fast'; " in found
    assert "convrt: is no known key; known are corpus, extra, name, rate, tasks" in found


def test_all_override_problems_are_told_at_once(tmp_path):
    found = problems(
        write(tmp_path, GOOD),
        "tasks.2.limit=1",
        "tasks.x.limit=1",
        "rate",
        "=3",
        "corpus..x=1",
        "rate=[1",
        "rate.x=!!python/name:os.system 1",
    )
    assert len(found) == 7
    assert all(problem.startswith("--set ") for problem in found)
    assert "none of 0 to 1" in found[0]
    assert "has no '='" in found[2]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_that_json_cannot_carry_are_refused(tmp_path, value):
    found = problems(write(tmp_path, GOOD), f"extra.x={value}", "corpus.vocab_size=300")
    assert found == [f"extra.x: is {value}; must be a finite number"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n", "must be a mapping of sections, not list"),
        (b"just text", "not str"),
        (b"a: \xff\xfe", "is not UTF-8 at byte 3"),
    ],
)
def test_files_that_are_no_config(tmp_path, content, words):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    (problem,) = problems(path)
    assert problem.startswith(f"{path}: ")
    assert words in problem


def test_a_missing_file_and_a_folder(tmp_path):
    assert "cannot be read: No such file" in problems(tmp_path / "no.yaml")[0]
    assert "cannot be read: Is a directory" in problems(tmp_path)[0]


def test_a_byte_order_mark_is_no_problem(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_config(Run, path).name == "run"


keys = st.text(st.characters(exclude_characters=".=", exclude_categories=["Cs", "C"]), min_size=1)
clean_keys = keys.filter(lambda key: key == key.strip() and key)


@given(st.lists(clean_keys, min_size=1, max_size=4), st.integers())
def test_an_override_puts_exactly_its_value_there(path, value):
    data: dict = {}
    apply_overrides(data, [f"{'.'.join(path)}={value}"])
    for key in path:
        assert list(data) == [key]
        data = data[key]
    assert data == value


@given(st.text(max_size=40))
def test_any_override_is_read_or_refused_in_a_sentence(text):
    try:
        path, _ = parse_override(text)
    except BadInput as error:
        refusal = str(error)
    else:
        assert path
        assert all(path)
        return
    assert refusal.startswith("--set ")


@given(st.dictionaries(clean_keys, st.integers() | st.text() | st.lists(st.integers())))
def test_any_mapping_is_refused_in_sentences(data):
    data["corpus"] = 3  # so that there is a problem at least
    with pytest.raises(BadInput, match="corpus: "):
        check_config(Run, data)


def test_a_very_long_word_is_shown_by_its_ends() -> None:
    said = str(BadInput("paths.0: '" + "x" * 5000 + ".txt' fits no file"))
    assert len(said) < 250
    assert ".txt' fits no file" in said
