"""Conversion: padding rows, sizes and types, and a proof that a wrong layout does not pass."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from artifacts.architecture import Architecture
from artifacts.errors import BadInput, StageFailed
from artifacts.hf_model import read_model
from artifacts.manifest import Manifest
from artifacts.store import artifact_path
from stages.convert import run as convert_run
from stages.convert.config import SPEC, ConvertConfig
from stages.convert.proof import logits_difference, stored_difference
from stages.convert.run import REPORT, run
from stages.engine import runtime
from stages.process import execute
from stages.spec import Request
from tests.tiny_models import VOCAB, as_artifact, random_weights, tiny, write_hf


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    runtime.start("CPU")


def convert(
    tmp_path: Path, a: Architecture, config: dict[str, Any], weights: Any = None
) -> tuple[Manifest, Path]:
    """Run the stage in this process; returns the manifest and the artifact's directory."""
    source = as_artifact(tmp_path, "checkpoint", lambda directory: write_hf(directory, a, weights))
    request = Request("convert", config, {"checkpoint": str(source)}, str(tmp_path))
    manifest = execute(SPEC, run, request)
    return manifest, artifact_path(tmp_path, "hf-model", manifest.identity)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_family_converts(tmp_path: Path, family) -> None:
    a = tiny(family, layers=1, tied_head=family == "qwen2")
    manifest, directory = convert(tmp_path, a, {})
    weights = random_weights(a)
    written = read_model(directory)
    assert written.architecture == a
    assert all(np.array_equal(written.weights[name], weights[name]) for name in weights)
    assert {path.name for path in directory.iterdir()} == {
        "config.json",
        "conversion.json",
        "generation_config.json",
        "manifest.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    report = json.loads((directory / REPORT).read_text())
    assert report["logits"]["scaled"] == manifest.headline["max_error"]
    assert 0 < report["logits"]["scaled"] <= 1e-5


@pytest.mark.parametrize(("dtype", "least"), [("fp16", 1e-4), ("bf16", 1e-3)])
def test_lower_precision_is_measured_not_hidden(tmp_path: Path, dtype, least: float) -> None:
    _, directory = convert(tmp_path, tiny(layers=1), {"dtype": dtype, "max_shard_size": "10KB"})
    report = json.loads((directory / REPORT).read_text())
    assert report["dtype"] == dtype
    assert least < report["logits"]["scaled"] < report["logits"]["threshold"]
    assert len(list(directory.glob("model-*-of-*.safetensors"))) >= 3
    assert not (directory / "model.safetensors").exists()


def test_padding_rows_are_kept_unless_said_otherwise(tmp_path: Path) -> None:
    a = tiny(vocab_size=VOCAB + 12, tied_head=False, layers=1)
    _, directory = convert(tmp_path, a, {})
    assert read_model(directory).architecture.vocab_size == VOCAB + 12
    report = json.loads((directory / REPORT).read_text())
    assert (report["rows_cut"], report["rows_without_token"]) == (0, 12)


@pytest.mark.parametrize("tied", [True, False])
def test_padding_rows_are_cut_when_the_config_says_so(tmp_path: Path, tied: bool) -> None:
    a = tiny(vocab_size=VOCAB + 12, tied_head=tied, layers=1)
    _, directory = convert(tmp_path, a, {"cut_padding": True})
    written = read_model(directory)
    assert written.architecture.vocab_size == VOCAB
    weights = random_weights(a)
    for name in ("model.embed_tokens.weight", "lm_head.weight")[: 2 - tied]:
        assert np.array_equal(written.weights[name], weights[name][:VOCAB])
    assert json.loads((directory / REPORT).read_text())["rows_cut"] == 12


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the model's vocabulary ends at 249"):
        convert(tmp_path, tiny(vocab_size=250), {})
    assert not list((tmp_path / "hf-model").glob("[0-9a-f]*"))


@pytest.mark.parametrize(
    "config", [{"dtype": "fp8"}, {"max_shard_size": "2PB"}, {"max_shard_size": "0GB"}, {"dtyp": 1}]
)
def test_wrong_configs_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ConvertConfig.model_validate(config)


def interleaved(value: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows in the order of interleaved rotary embeddings: the classic wrong layout."""
    heads = value.reshape(-1, head_dim // 2, 2, value.shape[-1])
    return np.ascontiguousarray(heads.transpose(0, 2, 1, 3)).reshape(value.shape)


@pytest.mark.parametrize(("kv_heads", "projection"), [(1, "q_proj"), (2, "k_proj"), (4, "q_proj")])
def test_a_wrong_rotary_layout_is_far_from_the_threshold(
    tmp_path: Path, kv_heads: int, projection: str
) -> None:
    a = tiny(kv_heads=kv_heads, layers=1)
    weights = write_hf(tmp_path / "right", a)
    name = f"model.layers.0.self_attn.{projection}.weight"
    wrong = weights | {name: interleaved(weights[name], a.head_dim)}
    write_hf(tmp_path / "wrong", a, wrong)
    source, written = read_model(tmp_path / "right"), read_model(tmp_path / "wrong")
    found = logits_difference(source, written, "fp32")
    assert not found["passed"]
    assert found["scaled"] > 1e-2
    assert stored_difference(source, written, "fp32") == [name]


def test_a_swapped_key_head_is_found(tmp_path: Path) -> None:
    a = tiny("qwen2", layers=1)
    weights = write_hf(tmp_path / "right", a)
    name = "model.layers.0.self_attn.k_proj.weight"
    heads = weights[name].reshape(a.kv_heads, a.head_dim, -1)[::-1]
    write_hf(tmp_path / "wrong", a, weights | {name: heads.reshape(weights[name].shape)})
    found = logits_difference(
        read_model(tmp_path / "right"), read_model(tmp_path / "wrong"), "fp32"
    )
    assert found["scaled"] > 1e-3


def test_a_writer_that_errs_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = convert_run.write_weights

    def off_by_one_bit(directory: Path, a: Any, read: Any, dtype: Any, *more: Any) -> None:
        def changed(name: str) -> np.ndarray:
            value = np.array(read(name))
            if name == "model.norm.weight":
                value.view(np.int32)[0] ^= 1
            return value

        right(directory, a, changed, dtype, *more)

    monkeypatch.setattr(convert_run, "write_weights", off_by_one_bit)
    with pytest.raises(StageFailed, match=r"does not read back as it was written: model.norm"):
        convert(tmp_path, tiny(), {})
    assert not list((tmp_path / "hf-model").glob("[0-9a-f]*"))
