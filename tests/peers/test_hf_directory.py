"""transformers opens our directories with its Auto classes, and its numbers are ours."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from artifacts.architecture import HF_CLASS
from artifacts.fields import DType
from artifacts.hf_model import read_model
from stages.convert.reference import reference_logits
from tests.tiny_models import tiny, write_hf

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-untied-one-kv": {"family": "llama", "tied_head": False, "kv_heads": 1},
    "mistral": {"family": "mistral", "kv_heads": 4},
    "mistral-untied": {"family": "mistral", "tied_head": False},
    "qwen2": {"family": "qwen2"},
    "qwen2-untied-one-kv": {"family": "qwen2", "tied_head": False, "kv_heads": 1},
    "qwen3": {"family": "qwen3"},
    "qwen3-untied": {"family": "qwen3", "tied_head": False, "kv_heads": 4},
}
TEXTS = [
    "Question: 2+2?\nAnswer:",
    " 4",
    "问题：法国的首都\n答案：",
    "a<|endoftext|>b",
    "",
    " \n\t😀",
]


def inputs(vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, mask and positions with padding on both sides and a hole."""
    ids = np.random.default_rng(3).integers(0, vocab_size, (3, 12))
    mask = np.ones(ids.shape, bool)
    mask[0, :4] = mask[1, 9:] = mask[2, 5] = False
    return ids, mask, np.maximum(mask.cumsum(1) - 1, 0)


def peer_logits(directory: Path, **options: Any) -> tuple[Any, np.ndarray]:
    model = AutoModelForCausalLM.from_pretrained(directory, **options).eval()
    ids, mask, positions = inputs(model.config.vocab_size)
    with torch.no_grad():
        logits = model(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask).long(),
            position_ids=torch.tensor(positions),
        ).logits
    return model, logits.float().numpy()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 9000])
def test_logits_agree(tmp_path: Path, name: str, max_shard_bytes: int) -> None:
    a = tiny(**SHAPES[name])
    weights = write_hf(tmp_path, a, max_shard_bytes=max_shard_bytes)
    model, logits = peer_logits(tmp_path)
    assert type(model).__name__ == HF_CLASS[a.family]
    assert model.dtype == torch.float32
    ids, mask, _ = inputs(a.vocab_size)
    ours = reference_logits(a, weights, ids, mask)
    assert np.abs(ours - logits)[mask].max() <= 1e-5
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    assert tied == a.tied_head


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_half_precision_directories_load_as_what_they_are(
    tmp_path: Path, dtype: DType, family
) -> None:
    a = tiny(family)
    write_hf(tmp_path, a, dtype=dtype)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    _, logits = peer_logits(tmp_path, dtype=torch.float32)
    ids, mask, _ = inputs(a.vocab_size)
    ours = reference_logits(a, read_model(tmp_path).weights, ids, mask)
    assert np.abs(ours - logits)[mask].max() <= 1e-5


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_what_transformers_saves_is_read_the_same(tmp_path: Path, family) -> None:
    write_hf(tmp_path / "ours", tiny(family))
    model, _ = peer_logits(tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    again = read_model(tmp_path / "theirs")
    ours = read_model(tmp_path / "ours")
    assert again.architecture == ours.architecture
    assert all(np.array_equal(again.weights[name], ours.weights[name]) for name in ours.weights)


def test_the_tokenizer_gives_the_same_ids(tmp_path: Path) -> None:
    write_hf(tmp_path, tiny())
    peer = AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert peer(text)["input_ids"] == ids
        assert peer.decode(ids) == ours.decode(ids, skip_special_tokens=False)
    assert (peer.eos_token_id, peer.pad_token_id) == (0, 1)


def test_generation_stops_where_the_config_says(tmp_path: Path) -> None:
    write_hf(tmp_path, tiny())
    generation = GenerationConfig.from_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (generation.eos_token_id, generation.pad_token_id) == (0, 1)
    assert generation.do_sample is False
    assert (config.eos_token_id, config.bos_token_id) == (0, None)
    assert config.rope_parameters["rope_theta"] == 10000.0
