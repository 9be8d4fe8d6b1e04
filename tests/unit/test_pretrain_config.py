"""What a pretrain config refuses, and with which numbers."""

import pytest
from pydantic import ValidationError

from artifacts.validation import sentences
from stages.pretrain.config import PretrainConfig

MODEL = {"hidden_size": 32, "layers": 1, "heads": 4, "intermediate_size": 48}


def config(batch: dict, **rest: object) -> PretrainConfig:
    values = {"model": MODEL, "batch": {"sequence_length": 16} | batch, "steps": 10} | rest
    return PretrainConfig.model_validate(values)


def refusal(batch: dict, **rest: object) -> str:
    with pytest.raises(ValidationError) as error:
        config(batch, **rest)
    return "\n".join(sentences(error.value, "pretrain"))


def test_sizes_follow_from_what_is_stated() -> None:
    found = config({"global_tokens": 128}, parallel={"data": 2})
    assert (found.batch.sequences(), found.micro_size, found.accumulation) == (8, 4, 1)
    found = config({"global_size": 24, "per_device_size": 3}, parallel={"data": 2})
    assert (found.batch.sequences(), found.micro_size, found.accumulation) == (24, 3, 4)


def test_what_does_not_divide_is_refused_with_its_numbers() -> None:
    text = refusal({"global_tokens": 100})
    assert "global_tokens 100" in text
    assert "sequence_length 16" in text
    assert "96 or 112" in text
    text = refusal({"global_size": 6}, parallel={"data": 4})
    assert "6 sequences" in text
    assert "data 4" in text
    assert "4 or 8" in text
    text = refusal({"global_size": 8, "per_device_size": 3}, parallel={"data": 2})
    assert "8 sequences" in text
    assert "per_device_size 3 = 6" in text
    assert "6 or 12" in text
    # Fewer than one micro-batch must not become an accumulation of 0.
    text = refusal({"global_size": 2, "per_device_size": 4})
    assert "2 sequences" in text


@pytest.mark.parametrize("batch", [{}, {"global_size": 4, "global_tokens": 64}])
def test_exactly_one_size_is_stated(batch: dict) -> None:
    assert "exactly one of global_tokens and global_size" in refusal(batch)


def test_shapes_that_cannot_be_are_refused() -> None:
    assert "no multiple of heads 5" in refusal({"global_size": 1}, model=MODEL | {"heads": 5})
    text = refusal({"global_size": 1}, model=MODEL | {"kv_heads": 3})
    assert "kv_heads 3 does not divide heads 4" in text
    text = refusal({"global_size": 1}, model=MODEL | {"head_dim": 7})
    assert "head_dim 7 must be even" in text
    text = refusal({"global_size": 1}, model=MODEL | {"max_positions": 8})
    assert "max_positions 8" in text
    assert "no known key" in refusal({"global_size": 1}, model=MODEL | {"dropout": 0.1})
    assert "precision" in refusal({"global_size": 1}, precision="fp8")


def test_the_architecture_takes_its_vocabulary_from_the_corpus() -> None:
    shape = config({"global_size": 1}).model.architecture(vocab_size=77, sequence_length=16)
    assert (shape.vocab_size, shape.kv_heads, shape.head_dim) == (77, 4, 8)
    assert shape.max_positions == 16
