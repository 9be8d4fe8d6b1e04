"""What config.json says is honoured or refused by name, never passed over."""

from typing import Any

import pytest

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.rope import Llama3Scaling, YarnScaling
from tests.tiny_models import tiny

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(family: Any = "llama", **changes: Any) -> dict[str, Any]:
    found = tiny(family).to_hf(dtype="float32", bos_id=None, eos_id=0, pad_id=None)
    found = {key: value for key, value in (found | changes).items() if value is not ...}
    return found


def read(family: Any = "llama", **changes: Any) -> Architecture:
    return Architecture.from_hf(config(family, **changes))


@pytest.mark.parametrize("name", ["rope_type", "type"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_both_spellings_of_both_versions_of_transformers(name: str, key: str) -> None:
    other = "rope_parameters" if key == "rope_scaling" else "rope_scaling"
    a = read(**{key: {name: "llama3", **LLAMA3}, other: ..., "rope_theta": 500000.0})
    assert a.rope_scaling == Llama3Scaling(**LLAMA3)
    assert a.rope_theta == 500000.0


def test_qwen_s_own_words_for_yarn() -> None:
    said = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    a = read("qwen2", rope_scaling=said, rope_parameters=...)
    assert a.rope_scaling == YarnScaling(factor=4.0, original_max_position_embeddings=32768)
    assert a.rope_scaling.sharpness == pytest.approx(1.138629436)


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("mistral", {"sliding_window": 7}, 7),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {"sliding_window": ...}, 4096),  # transformers' default
        ("qwen2", {"sliding_window": 7, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True}, None),  # from layer 28 on
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, 7),
        ("qwen3", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2}, None),
        (
            "qwen3",
            {
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention"] * 2,
            },
            7,
        ),
    ],
)
def test_windows(family: str, changes: dict[str, Any], window: int | None) -> None:
    assert read(family, **changes).sliding_window == window


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("llama", {"sliding_window": 7}, "sliding_window is 7, supported is null for llama"),
        ("mistral", {"sliding_window": 0}, "sliding_window: is 0; input should be greater than 0"),
        ("qwen2", {"attention_bias": True}, "attention_bias is true, supported is false for qwen2"),
        ("qwen3", {"mlp_bias": True}, "mlp_bias is true, supported is false for qwen3"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, supported"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ("llama", {"rope_scaling": {"type": "mrope"}, "rope_parameters": ...}, "is 'mrope'"),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 1e4, "factor": 2.0}},
            "factor is 2.0, supported is null without a rope_type",
        ),
        (
            "llama",
            {"rope_parameters": {"type": "linear", "factor": 2.0, "alpha": 1}},
            "rope_scaling.alpha: is no known key",
        ),
        (
            "llama",
            {"rope_parameters": {"type": "linear", "factor": -1}},
            "rope_scaling.factor: is -1; input should be greater than 0",
        ),
        (
            "llama",
            {"rope_parameters": {"type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            "high_freq_factor 1.0 must be above low_freq_factor 1.0",
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "max_window_layers is 1, supported is 0 or num_hidden_layers",
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types is ['full_attention', 'sliding_attention'], supported is full_attention",
        ),
    ],
)
def test_what_is_not_supported_is_named(family: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(family, **changes)
    assert says in str(caught.value)


def test_what_real_configs_say_beside_the_mathematics_is_no_reason_to_refuse() -> None:
    """Fields of Llama 3.2, Qwen2.5, TinyLlama and SmolLM2 as published, and of transformers 4."""
    said = {
        "_name_or_path": "x",
        "transformers_version": "4.45.0",
        "torch_dtype": "bfloat16",
        "is_llama_config": True,
        "rope_interleaved": False,
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
        "attention_dropout": 0.1,
        "pretraining_tp": 1,
        "temperature": 0.6,
        "do_sample": True,
        "id2label": {"0": "LABEL_0"},
        "return_dict": True,
    }
    assert read(**said) == tiny()


@pytest.mark.parametrize(
    "changes",
    [
        {"family": "mistral", "sliding_window": 5},
        {"family": "qwen2", "sliding_window": 5},
        {"family": "llama", "attention_bias": True, "mlp_bias": True},
        {"family": "qwen3", "attention_bias": True},
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "mscale": 0.5,
                "mscale_all_dim": 1.0,
            }
        },
    ],
)
def test_what_is_written_reads_back(changes: dict[str, Any]) -> None:
    a = tiny(**changes)
    assert Architecture.from_hf(a.to_hf(dtype="bfloat16", bos_id=0, eos_id=1, pad_id=2)) == a
