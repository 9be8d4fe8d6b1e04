"""The float64 gradients that layouts are measured against are torch's own."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from artifacts.architecture import Architecture
from tests.exact_gradients import exact_gradients
from tests.tiny_models import random_weights, tiny

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-untied-one-kv-head": {"tied_head": False, "kv_heads": 1},
    "qwen3": {"family": "qwen3"},
}


def norm(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """RMSNorm in the input's own precision: transformers takes float32 in between."""
    factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    weight: torch.Tensor = self.weight
    return weight * (x * factor)


@pytest.fixture(autouse=True)
def _float64_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = nn.functional.softmax
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", norm)


def rotation(shape: Architecture, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    even = torch.arange(0, shape.head_dim, 2, dtype=torch.float64)
    angle = torch.arange(length)[:, None] / shape.rope_theta ** (even / shape.head_dim)
    angle = torch.cat((angle, angle), -1)[None]
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("name", SHAPES)
def test_exact_gradients_are_those_of_torch(name: str) -> None:
    shape = tiny(**SHAPES[name])
    weights = random_weights(shape)
    rng = np.random.default_rng(1)
    ids, labels = rng.integers(0, shape.vocab_size, (2, 3, 11))
    labels[rng.random(labels.shape) < 0.3] = -100
    config = shape.to_hf(dtype="float32", bos_id=None, eos_id=0, pad_id=None)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config), attn_implementation="eager"
    ).double()
    state = {key: torch.tensor(value, dtype=torch.float64) for key, value in weights.items()}
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    model.model.rotary_emb.forward = lambda x, position_ids: rotation(shape, ids.shape[1])
    logits = model(input_ids=torch.tensor(ids), use_cache=False).logits
    assert logits.dtype == torch.float64
    nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(labels).flatten(), reduction="sum"
    ).backward()
    ours = exact_gradients(shape, weights, ids, labels)
    theirs = {key: p.grad.numpy() for key, p in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for key, gradient in theirs.items():
        assert np.linalg.norm(ours[key] - gradient) <= 1e-13 * np.linalg.norm(gradient), key
