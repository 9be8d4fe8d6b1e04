"""A tokenizer.model becomes a tokenizer.json that says the same as SentencePiece, or is refused."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from artifacts.errors import BadInput
from artifacts.sentencepiece_model import take_tokenizer

TEXTS = [
    f"The {word} lies by river {i}, north of here; {i * 37} people. 问题：第{i}个城市？答案：北"
    for i, word in enumerate(["city", "village", "harbour", "mountain pass", "old town"] * 40)
]
IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS: dict[str, dict[str, Any]] = {
    "llama 2's": {"model_type": "bpe", "byte_fallback": True, **IDENTITY},
    "bpe, normalised": {"model_type": "bpe", "byte_fallback": True},
    "unigram": {"model_type": "unigram", "byte_fallback": True, **IDENTITY},
    "unigram, normalised": {"model_type": "unigram"},
    "own symbols": {
        "model_type": "bpe",
        "byte_fallback": True,
        "user_defined_symbols": ["<|im_start|>", "<|im_end|>"],
        "add_dummy_prefix": False,
        **IDENTITY,
    },
}


def train(directory: Path, **settings: Any) -> sentencepiece.SentencePieceProcessor:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=out,
        vocab_size=380,
        hard_vocab_limit=False,
        character_coverage=0.99,
        minloglevel=2,
        **settings,
    )
    directory.mkdir()
    (directory / "tokenizer.model").write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "target").mkdir()
    return tmp_path / "source", tmp_path / "target"


@pytest.mark.parametrize("name", KINDS)
def test_it_says_what_sentencepiece_says(places: tuple[Path, Path], name: str) -> None:
    source, target = places
    peer = train(source, **KINDS[name])
    files = take_tokenizer(source, target)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    for text in [*TEXTS[:5], "never seen: xyzzy, Ωμέγα, 😀 \t\n done", " a  b ", "ﬁ ＡＢ"]:
        ids = peer.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        if peer.unk_id() not in ids:  # which SentencePiece writes as a sign of its own
            assert tokenizer.decode(ids) == peer.decode(ids)
    assert tokenizer.encode("the").ids[0] == peer.bos_id() == files.special["bos_token"]
    assert files.rows == peer.vocab_size()
    assert "was converted" in files.notes[0]
    assert json.loads((target / "special_tokens_map.json").read_text())["eos_token"] == "</s>"


def test_added_tokens_and_the_chat_template_come_along(places: tuple[Path, Path]) -> None:
    source, target = places
    peer = train(source, **KINDS["llama 2's"])
    rows = peer.vocab_size()
    (source / "added_tokens.json").write_text(json.dumps({"<pad>": rows, "<|end|>": rows + 1}))
    config = {"pad_token": "<pad>", "add_bos_token": False, "chat_template": "{{ messages }}"}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    files = take_tokenizer(source, target)
    assert files.special["pad_token"] == rows
    assert files.rows == rows + 2
    assert files.config["chat_template"] == "{{ messages }}"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert tokenizer.encode("city<|end|>").ids == [*peer.encode("city"), rows + 1]


def test_what_does_not_convert_is_refused(places: tuple[Path, Path]) -> None:
    source, target = places
    train(source, **KINDS["llama 2's"] | {"user_defined_symbols": [" x", "\n"]})
    with pytest.raises(BadInput, match=r"model: cannot be converted: .* would be tokens"):
        take_tokenizer(source, target)
    train(source.with_name("words"), model_type="word")
    with pytest.raises(BadInput, match="model_type is 3, supported is unigram"):
        take_tokenizer(source.with_name("words"), target)


def test_an_added_token_may_not_stand_elsewhere(places: tuple[Path, Path]) -> None:
    source, target = places
    train(source, **KINDS["unigram"])
    (source / "added_tokens.json").write_text(json.dumps({"<pad>": 5000}))
    with pytest.raises(BadInput, match=r"added_tokens\.json: <pad> is token 5000; after the"):
        take_tokenizer(source, target)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x0a\xff\xff\xff\xff\x0f", b"abc" * 100])
def test_no_bytes_end_in_a_traceback(places: tuple[Path, Path], data: bytes) -> None:
    source, target = places
    source.mkdir()
    (source / "tokenizer.model").write_bytes(data)
    with pytest.raises(BadInput, match=r"tokenizer\.model: is no SentencePiece model"):
        take_tokenizer(source, target)
