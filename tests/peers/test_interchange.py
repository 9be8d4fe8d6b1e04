"""Checkpoints that transformers made: in, the same logits, and out again byte for byte."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from artifacts.hf_model import read_model
from artifacts.store import artifact_path
from stages.convert import proof
from stages.convert.config import SPEC as CONVERT
from stages.convert.run import run as convert
from stages.engine.inference import InferenceModel
from stages.importing.config import SPEC as IMPORT
from stages.importing.run import run as import_
from stages.process import execute
from stages.spec import Request
from tests.tiny_models import VOCAB, write_tokenizer

TOLERANCE = 1e-5
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    # Llama 2 and 3, TinyLlama and SmolLM in shape
    "llama-grouped-llama3": {"num_key_value_heads": 2, "rope_parameters": LLAMA3},
    "llama-tied-odd-heads-linear": {
        "num_key_value_heads": 4,
        "head_dim": 20,
        "tie_word_embeddings": True,
        "rope_parameters": LINEAR,
    },
    "llama-biases-one-kv": {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    "mistral-window": {"num_key_value_heads": 2, "sliding_window": 6},
    "mistral-wide-heads": {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": None},
    "mistral-tied": {"num_key_value_heads": 4, "tie_word_embeddings": True, "sliding_window": 64},
    "qwen2-grouped": {"num_key_value_heads": 2},
    "qwen2-tied-yarn": {
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "rope_parameters": YARN,
    },
    "qwen2-window": {
        "num_key_value_heads": 1,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 0,
    },
    "qwen3-grouped": {"num_key_value_heads": 2, "head_dim": 16},
    "qwen3-tied-biases": {
        "num_key_value_heads": 1,
        "head_dim": 24,
        "tie_word_embeddings": True,
        "attention_bias": True,
    },
    "qwen3-llama3-wide": {"num_key_value_heads": 4, "head_dim": 32, "rope_parameters": LLAMA3},
}
"""Three of each family."""


def make(directory: Path, name: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A random model as transformers saves it: shards of a few KB, norms off 1, biases off 0."""
    family = name.partition("-")[0]
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    kind = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    config = getattr(transformers, f"{kind}Config")(**(sizes | MODELS[name]))
    torch.manual_seed(sum(name.encode()))
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in parameter_name:
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(noise * (0.3 if parameter_name.endswith("bias") else 0.12))
    model.to(dtype).save_pretrained(directory, max_shard_size="9KB")
    write_tokenizer(directory)
    return model.eval()


def take(store: Path, directory: Path) -> Path:
    request = Request("import", {"directory": str(directory)}, {}, str(store))
    return artifact_path(store, "checkpoint", execute(IMPORT, import_, request).identity)


def give(store: Path, checkpoint: Path, dtype: str) -> Path:
    config = {"dtype": dtype, "max_shard_size": "9KB"}
    request = Request("convert", config, {"checkpoint": str(checkpoint)}, str(store))
    return artifact_path(store, "hf-model", execute(CONVERT, convert, request).identity)


def logits(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids)).logits.float().numpy()


IDS = np.random.default_rng(5).integers(0, VOCAB, (2, 33))


@pytest.mark.parametrize("name", MODELS)
def test_in_the_same_numbers_and_out_again_the_same_bytes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "LARGEST_LOADED", 0)  # transformers is the proof here
    theirs = logits(make(tmp_path / "theirs", name), IDS)
    assert (tmp_path / "theirs/model.safetensors.index.json").is_file()
    taken = take(tmp_path, tmp_path / "theirs")
    ours = InferenceModel.load(taken).logits(IDS)
    assert theirs.std() > 0.3
    assert np.abs(ours - theirs).max() <= TOLERANCE

    given = give(tmp_path, taken, "fp32")
    source, back = read_model(tmp_path / "theirs").weights, read_model(given).weights
    assert list(source) == list(back)
    for tensor in source:
        assert source.raw(tensor).tobytes() == back.raw(tensor).tobytes()
    again = give(tmp_path, take(tmp_path, given), "fp32")
    files = sorted(path.name for path in given.iterdir() if path.name != "manifest.json")
    assert len(files) > 6
    for file in files:
        assert (given / file).read_bytes() == (again / file).read_bytes(), file

    loaded = AutoModelForCausalLM.from_pretrained(given).eval()
    np.testing.assert_array_equal(logits(loaded, IDS), theirs)
    assert AutoTokenizer.from_pretrained(given).encode("a<|im_end|>b")[1] == 3


@pytest.mark.parametrize("name", ["llama-grouped-llama3", "qwen3-grouped"])
def test_a_wrong_order_of_rotary_features_would_be_seen(tmp_path: Path, name: str) -> None:
    """Meta's interleaved order in the file, as a wrong converter leaves it."""
    theirs = logits(make(tmp_path / "theirs", name), IDS)
    wrong = make(tmp_path / "wrong", name)
    dim = wrong.config.head_dim
    order = np.arange(dim).reshape(2, -1).T.reshape(-1)
    with torch.no_grad():
        for layer in wrong.model.layers:
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                heads = linear.weight.reshape(-1, dim, linear.weight.shape[1])
                linear.weight.copy_(heads[:, order].reshape(linear.weight.shape))
    wrong.save_pretrained(tmp_path / "wrong", max_shard_size="9KB")
    ours = InferenceModel.load(take(tmp_path, tmp_path / "wrong")).logits(IDS)
    assert np.abs(ours - theirs).max() > 1000 * TOLERANCE


@pytest.mark.parametrize(("ours", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_half_precision_keeps_its_bytes(
    tmp_path: Path, ours: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "LARGEST_LOADED", 0)
    make(tmp_path / "theirs", "qwen2-grouped", dtype)
    given = give(tmp_path, take(tmp_path, tmp_path / "theirs"), ours)
    loaded = AutoModelForCausalLM.from_pretrained(given)
    original = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").state_dict()
    assert loaded.dtype == dtype
    for name, value in loaded.state_dict().items():
        assert torch.equal(value.view(torch.int16), original[name].view(torch.int16))
