"""The engine's logits are transformers' logits, for every family and flag."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from artifacts.architecture import Architecture
from artifacts.rope import scaled
from artifacts.weights import Weights, write_safetensors
from stages.convert.reference import reference_logits
from stages.engine.inference import InferenceModel

TOLERANCE = 1e-5

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SHAPES = {
    "llama": {"family": "llama"},
    "llama-untied": {"family": "llama", "tied_head": False},
    "llama-one-kv-head": {"family": "llama", "kv_heads": 1},
    "llama-all-kv-heads": {"family": "llama", "kv_heads": 4},
    "llama-wide-heads": {"family": "llama", "head_dim": 32, "rope_theta": 500000.0},
    "llama-narrow-mlp": {"family": "llama", "intermediate_size": 48},
    "mistral": {"family": "mistral", "tied_head": False, "rms_norm_eps": 1e-5},
    "qwen2": {"family": "qwen2"},
    "qwen2-untied": {"family": "qwen2", "tied_head": False},
    "qwen3": {"family": "qwen3", "head_dim": 24},
    "qwen3-untied": {"family": "qwen3", "tied_head": False},
    "llama-linear": {"family": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "llama-llama3": {"family": "llama", "head_dim": 32, "rope_scaling": LLAMA3},
    "llama-biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral-window": {"family": "mistral", "sliding_window": 7},
    "qwen2-yarn-window": {"family": "qwen2", "sliding_window": 11, "rope_scaling": YARN},
    "qwen3-biases-window": {"family": "qwen3", "attention_bias": True, "sliding_window": 5},
    "qwen3-yarn": {
        "family": "qwen3",
        "head_dim": 32,
        "rope_scaling": YARN | {"truncate": False, "mscale": 0.7, "mscale_all_dim": 1.2},
    },
    "llama-yarn": {
        "family": "llama",
        "head_dim": 64,
        "rope_scaling": YARN | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
    },
}


def make_architecture(**changes: object) -> Architecture:
    values: dict[str, object] = {
        "vocab_size": 97,
        "hidden_size": 64,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 176,
        "max_positions": 256,
    }
    return Architecture.model_validate(values | changes)


def random_tensors(shape: Architecture, seed: int) -> dict[str, np.ndarray]:
    """Weights that give logits of order 1, with biases and norms far from their neutral values."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, size in shape.tensor_shapes().items():
        value = rng.standard_normal(size) * (0.3 if name.endswith("bias") else 0.12)
        found[name] = (value + (1.0 if "norm" in name else 0.0)).astype(np.float32)
    return found


def write_model_directory(
    directory: Path, shape: Architecture, tensors: dict[str, np.ndarray]
) -> None:
    config = shape.to_hf(dtype="float32", bos_id=None, eos_id=0, pad_id=1)
    (directory / "config.json").write_text(json.dumps(config))
    entries = [(name, value.shape, value.dtype) for name, value in tensors.items()]
    write_safetensors(directory / "model.safetensors", entries, tensors.values(), {"format": "pt"})


def peer_logits(directory: Path, ids: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    inputs = {"input_ids": torch.from_numpy(ids.astype(np.int64))}
    if mask is not None:
        inputs["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        inputs["position_ids"] = torch.from_numpy(positions)
    with torch.no_grad():
        return model(**inputs).logits.numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_agree(name: str, tmp_path: Path) -> None:
    shape = make_architecture(**SHAPES[name])
    write_model_directory(tmp_path, shape, random_tensors(shape, seed=3))
    ids = np.random.default_rng(5).integers(0, shape.vocab_size, (3, 41))
    ours = InferenceModel.load(tmp_path).logits(ids)
    theirs = peer_logits(tmp_path, ids)
    assert 0.5 < theirs.std() < 5
    assert np.abs(ours - theirs).max() <= TOLERANCE
    # The reference of every proof, written down apart from the engine.
    assert np.abs(reference_logits(shape, Weights(tmp_path), ids) - theirs).max() <= TOLERANCE
    for field in ("rope_scaling", "sliding_window"):
        if getattr(shape, field) is not None:  # and it is no accident
            plain = shape.model_copy(update={field: None})
            other = reference_logits(plain, Weights(tmp_path), ids)
            assert np.abs(other - theirs).max() > 1000 * TOLERANCE


@pytest.mark.parametrize("kind", [LLAMA3, YARN, {"rope_type": "linear", "factor": 3.0}])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_frequencies_are_transformers_to_the_last_bit_or_two(kind: dict, theta: float) -> None:
    """At position 100,000 a frequency off by 1e-6 would be a tenth of a radian."""
    shape = make_architecture(head_dim=128, rope_theta=theta, rope_scaling=kind)
    config = transformers.LlamaConfig(**shape.to_hf(dtype="float32", bos_id=0, eos_id=0, pad_id=0))
    theirs, factor = ROPE_INIT_FUNCTIONS[kind["rope_type"]](config, "cpu")
    exponent = np.arange(0, 128, 2, dtype=np.float32) / np.float32(128)
    plain = (1.0 / np.float32(theta) ** exponent).astype(np.float32)
    ours, sharpness = scaled(plain, theta, shape.rope_scaling)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=3e-7, atol=0)
    assert sharpness == pytest.approx(factor, rel=1e-12)
    if kind["rope_type"] == "linear":
        return
    kept = plain == ours
    assert kept.any()
    assert not kept.all()


def test_logits_agree_under_left_and_right_padding(tmp_path: Path) -> None:
    shape = make_architecture(family="qwen3")
    write_model_directory(tmp_path, shape, random_tensors(shape, seed=4))
    ids = np.random.default_rng(6).integers(0, shape.vocab_size, (3, 23))
    mask = np.ones(ids.shape, bool)
    mask[0, :7] = False
    mask[1, 15:] = False
    ours = InferenceModel.load(tmp_path).logits(ids, mask)
    theirs = peer_logits(tmp_path, ids, mask)
    assert np.abs(ours - theirs)[mask].max() <= TOLERANCE
    assert np.isfinite(ours).all()


def test_a_wrong_rotary_permutation_is_noticed(tmp_path: Path) -> None:
    """Meta's interleaved order of q and k rows in the file: the classic silent conversion error."""
    shape = make_architecture(family="llama")
    tensors = random_tensors(shape, seed=3)
    (tmp_path / "right").mkdir()
    (tmp_path / "wrong").mkdir()
    write_model_directory(tmp_path / "right", shape, tensors)
    interleave = np.arange(shape.head_dim).reshape(2, -1).T.reshape(-1)
    for name in tensors:
        if "q_proj" in name or "k_proj" in name:
            heads = tensors[name].reshape(-1, shape.head_dim, shape.hidden_size)
            tensors[name] = np.ascontiguousarray(heads[:, interleave]).reshape(tensors[name].shape)
    write_model_directory(tmp_path / "wrong", shape, tensors)
    ids = np.random.default_rng(5).integers(0, shape.vocab_size, (2, 17))
    theirs = peer_logits(tmp_path / "right", ids)
    ours = InferenceModel.load(tmp_path / "wrong").logits(ids)
    assert np.abs(ours - theirs).max() > 100 * TOLERANCE


def test_score_is_log_softmax_of_the_logits(tmp_path: Path) -> None:
    shape = make_architecture(family="llama")
    write_model_directory(tmp_path, shape, random_tensors(shape, seed=8))
    ids = np.random.default_rng(7).integers(0, shape.vocab_size, (5, 30))
    lengths = np.array([30, 2, 17, 29, 1])
    found, greedy = InferenceModel.load(tmp_path).score(ids, lengths)
    logits = torch.from_numpy(peer_logits(tmp_path, ids)).double()
    expected = torch.log_softmax(logits, -1).numpy()
    for row, length in enumerate(lengths):
        for t in range(length - 1):
            target = ids[row, t + 1]
            assert abs(found[row, t] - expected[row, t, target]) <= TOLERANCE
            assert greedy[row, t] == (expected[row, t].argmax() == target)
        assert (found[row, length - 1 :] == 0).all()
        assert not greedy[row, length - 1 :].any()


def test_weights_pass_through_the_engine_unchanged(tmp_path: Path) -> None:
    from stages.engine import weights
    from stages.engine.model import Decoder

    for changes in SHAPES.values():
        shape = make_architecture(**changes)
        tensors = random_tensors(shape, seed=9)
        write_model_directory(tmp_path, shape, tensors)
        model = Decoder(shape)
        weights.load(model, shape, Weights(tmp_path))
        back = weights.read_base(model, shape)
        assert list(back) == list(tensors)
        assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
