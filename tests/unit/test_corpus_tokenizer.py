"""The tokenizer: trained the same every time, read by the stock library, safe against its text."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from artifacts.errors import BadInput
from artifacts.tokenizer_files import read_tokenizer
from stages.corpus.tokenizer import (
    CorpusTokenizer,
    copy_existing,
    open_tokenizer,
    train_tokenizer,
    write_trained,
)
from stages.evaluate.text import TextCodec

TEXTS = [
    "the cat sat on the mat",
    "the dog sat on the cat",
    "猫 坐 在 垫子 上",
    "狗 坐 在 猫 上",
] * 5


@pytest.fixture(scope="module")
def trained() -> CorpusTokenizer:
    return train_tokenizer(TEXTS, 280)


@settings(max_examples=100)
@given(text=st.text())
def test_any_text_comes_back(trained: CorpusTokenizer, text: str) -> None:
    (ids,) = trained.encode([text])
    assert trained.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_have_their_ids_and_text_cannot_forge_them(
    trained: CorpusTokenizer,
) -> None:
    names = ["<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
    assert [trained.tokenizer.token_to_id(name) for name in names] == [0, 1, 2, 3]
    (ids,) = trained.encode(["a<|endoftext|>b<|im_start|>"])
    assert min(ids) > 3
    assert trained.tokenizer.decode(ids) == "a<|endoftext|>b<|im_start|>"


def test_a_vocabulary_is_as_large_as_asked_or_as_the_text_gives() -> None:
    assert train_tokenizer(TEXTS, 270).vocab_size == 270
    most = train_tokenizer(TEXTS, 5000).vocab_size
    assert 280 < most < 400
    assert train_tokenizer(TEXTS, most).vocab_size == most


def test_training_gives_the_same_bytes_in_every_process_and_on_every_thread_count() -> None:
    program = (
        "from stages.corpus.tokenizer import train_tokenizer\n"
        "from stages.corpus.world import World, documents\n"
        "texts = list(documents(World(3, 40, 6), 600, 0.5, 0.1, 0.7))\n"
        "print(train_tokenizer(texts, 700).tokenizer.to_str())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "7")
    }
    assert len(printed) == 1
    assert len(printed.pop()) > 1000


def save(directory: Path, trained: CorpusTokenizer) -> Path:
    directory.mkdir(exist_ok=True)
    write_trained(directory, trained)
    return directory / "tokenizer.json"


def test_a_trained_tokenizer_is_read_back_as_it_was(
    tmp_path: Path, trained: CorpusTokenizer
) -> None:
    again = open_tokenizer(save(tmp_path, trained), None)
    assert (again.vocab_size, again.bos_id, again.eos_id, again.pad_id) == (280, None, 0, 1)
    assert again.encode(TEXTS) == trained.encode(TEXTS)


def test_an_existing_tokenizer_is_taken_over_byte_for_byte(
    tmp_path: Path, trained: CorpusTokenizer
) -> None:
    path = save(tmp_path / "from", trained)
    path.with_name("chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "to").mkdir()
    copy_existing(path, tmp_path / "to", None)
    for file in path.parent.iterdir():
        assert (tmp_path / "to" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("declared", ["<|endoftext|>", {"content": "<|endoftext|>"}, None])
def test_another_end_token_stands_in_the_copies(
    tmp_path: Path, trained: CorpusTokenizer, declared: Any
) -> None:
    """Else the run would fail where the trained model meets its tokenizer."""
    path = save(tmp_path / "from", trained)
    config = json.loads(path.with_name("tokenizer_config.json").read_text())
    config["eos_token"] = declared
    path.with_name("tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "to").mkdir()
    copy_existing(path, tmp_path / "to", "<|im_end|>")
    opened, copied = open_tokenizer(path, "<|im_end|>"), read_tokenizer(tmp_path / "to")
    assert copied.problems_with(opened.vocab_size, {"eos_token": opened.eos_id}) == []
    assert copied.special["eos_token"] == opened.eos_id == 3
    assert copied.config == config | {"eos_token": "<|im_end|>"}
    special = json.loads((tmp_path / "to/special_tokens_map.json").read_text())
    assert special["eos_token"] == "<|im_end|>"
    # Saying what the files say already changes nothing.
    (tmp_path / "again").mkdir()
    copy_existing(tmp_path / "to" / "tokenizer.json", tmp_path / "again", "<|im_end|>")
    for file in (tmp_path / "to").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_an_existing_tokenizer_without_its_companions_needs_its_end_token(
    tmp_path: Path, trained: CorpusTokenizer
) -> None:
    path = save(tmp_path / "from", trained)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path.with_name(name).unlink()
    with pytest.raises(BadInput, match="eos_token: is missing"):
        open_tokenizer(path, None)
    with pytest.raises(BadInput, match=r"eos_token: is '</s>'; .* has no such token"):
        open_tokenizer(path, "</s>")
    opened = open_tokenizer(path, "<|im_end|>")
    assert (opened.eos_id, opened.pad_id) == (3, 3)
    (tmp_path / "to").mkdir()
    copy_existing(path, tmp_path / "to", "<|im_end|>")
    config = json.loads((tmp_path / "to/tokenizer_config.json").read_text())
    assert (config["eos_token"], config["pad_token"]) == ("<|im_end|>", "<|im_end|>")


def declare(path: Path, **fields: Any) -> None:
    """Set fields of the tokenizer_config.json beside a tokenizer."""
    file = path.with_name("tokenizer_config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_documents_begin_as_what_is_scored_does(tmp_path: Path, trained: CorpusTokenizer) -> None:
    path = save(tmp_path, trained)
    declare(path, bos_token="<|im_start|>", add_bos_token=True)
    ids = open_tokenizer(path, None).encode(["cat"])
    assert ids == [each.tolist() for each in TextCodec(tmp_path).encode(["cat"])]
    assert ids[0][0] == 2


def test_a_beginning_token_that_the_tokenizer_adds_is_kept(
    tmp_path: Path, trained: CorpusTokenizer
) -> None:
    path = save(tmp_path, trained)
    content = json.loads(path.read_text())
    begin = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    end = {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    processor = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]}
            for name, i in (("<|im_start|>", 2), ("<|im_end|>", 3))
        },
    }
    path.write_text(json.dumps(content | {"post_processor": processor}))
    declare(path, bos_token="<|im_start|>")
    opened = open_tokenizer(path, None)
    assert opened.bos_id == 2
    assert opened.encode(["cat"]) == [Tokenizer.from_file(str(path)).encode("cat").ids]
    declare(path, add_bos_token=False)
    assert open_tokenizer(path, None).bos_id is None
    assert TextCodec(tmp_path).bos is None
    declare(path, bos_token="<|pad|>", add_bos_token=None)
    says = r"puts '<\|im_start\|>' before a text, bos_token beside it is '<\|pad\|>'; "
    with pytest.raises(BadInput, match=says):
        open_tokenizer(path, None)
    processor["single"] = [begin, text, end]
    path.write_text(json.dumps(content | {"post_processor": processor}))
    with pytest.raises(BadInput, match=r"puts tokens \[2, 3\] around a text"):
        open_tokenizer(path, None)


def test_padding_and_truncation_saved_in_a_tokenizer_do_not_touch_documents(
    tmp_path: Path, trained: CorpusTokenizer
) -> None:
    path = save(tmp_path, trained)
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(path))
    assert open_tokenizer(path, None).encode(TEXTS) == trained.encode(TEXTS)


@pytest.mark.parametrize("content", ["", "{}", "no json"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"is no tokenizer: "):
        open_tokenizer(path, "<|endoftext|>")
