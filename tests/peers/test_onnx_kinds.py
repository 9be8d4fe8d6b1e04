"""Other operators, precisions, adapters and layouts in other engines, against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import pytest
import torch
from transformers import AutoModelForCausalLM

from artifacts.onnx_bundle import OnnxModel, adapter_file
from artifacts.rope import Llama3Scaling, YarnScaling
from stages.export.agreement import run_cases
from stages.export.cases import sweep
from stages.export.engines import lane
from stages.export.kinds import MAX_ERROR
from tests.bundles import write_tiny_bundle
from tests.tiny_models import merged, random_adapter, tiny, write_hf

SHAPES: dict[str, dict[str, Any]] = {
    "llama3": {
        "head_dim": 16,
        "rope_scaling": Llama3Scaling(
            factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=32
        ),
    },
    "mistral-window": {"family": "mistral", "head_dim": 16, "sliding_window": 5, "kv_heads": 1},
    "qwen2-yarn": {
        "family": "qwen2",
        "head_dim": 16,
        "rope_scaling": YarnScaling(factor=4, original_max_position_embeddings=16),
    },
    "qwen3": {"family": "qwen3", "tied_head": False},
}
ENGINES = {
    "plain": ["onnxruntime", "reference", "openvino"],
    "opset23": ["onnxruntime", "reference", "openvino"],
    "microsoft": ["onnxruntime"],
}
PROMPT, NEW = [40, 41, 42, 43, 44], 12


def peer(directory: Path) -> Any:
    """transformers' logits of a directory, as a reference."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()

    def reference(ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(
                torch.tensor(ids),
                attention_mask=torch.tensor(mask).long(),
                position_ids=torch.tensor(positions),
            ).logits.numpy()

    return model, reference


def greedy(model: Any) -> list[int]:
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        out = model.generate(
            ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=1
        )
    return out[0].tolist()


def greedy_of_genai(bundle: Path, adapter: Path | None = None) -> list[int]:
    model = og.Model(str(bundle))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(PROMPT) + NEW, do_sample=False)
    generator = og.Generator(model, params)
    if adapter is not None:
        adapters = og.Adapters(model)
        adapters.load(str(adapter), "one")
        generator.set_active_adapter(adapters, "one")
    generator.append_tokens(np.array([PROMPT], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return list(generator.get_sequence(0))


def until_end(ids: list[int]) -> list[int]:
    """genai stops after end-of-sequence, token 0."""
    return ids[: ids.index(0) + 1] if 0 in ids else ids


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operators", ENGINES)
def test_every_engine_gives_transformers_logits(tmp_path: Path, operators: str, shape: str) -> None:
    write_tiny_bundle(tmp_path, tiny(**SHAPES[shape]), operators=operators)
    _, reference = peer(tmp_path / "hf")
    model = OnnxModel(tmp_path / "bundle", threads=1)
    lanes = [lane(name, operators, model) for name in ENGINES[operators]]  # type: ignore[arg-type]
    cases = [case for case in sweep(model.vocab_size, 9, seed=1) if case.kind != "masked row"]
    for found in run_cases(lanes, reference, cases, 1e-5):
        assert [(each.case, each.problem) for each in found if each.problem] == []


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_precisions_in_three_engines(tmp_path: Path, precision: str) -> None:
    write_tiny_bundle(tmp_path, tiny(), precision=precision)
    _, reference = peer(tmp_path / "hf")
    model = OnnxModel(tmp_path / "bundle", threads=1)
    lanes = [lane(name, "plain", model) for name in ENGINES["plain"]]  # type: ignore[arg-type]
    cases = [case for case in sweep(model.vocab_size, 7, seed=1) if case.kind != "masked row"]
    results = run_cases(lanes, reference, cases, MAX_ERROR[precision])  # type: ignore[index]
    for found in results:
        assert [(each.case, each.problem) for each in found if each.problem] == []
        for one, other in zip(results[0], found, strict=True):
            assert one.max_abs == pytest.approx(other.max_abs, rel=0.05, abs=1e-5), one.case


@pytest.mark.parametrize("operators", ENGINES)
@pytest.mark.parametrize(
    ("shape", "layout"), [*((shape, "flat") for shape in SHAPES), ("qwen3", "onnx_folder")]
)
def test_genai_writes_transformers_text(
    tmp_path: Path, operators: str, layout: str, shape: str
) -> None:
    write_tiny_bundle(tmp_path, tiny(**SHAPES[shape]), operators=operators, layout=layout)
    model, _ = peer(tmp_path / "hf")
    assert greedy_of_genai(tmp_path / "bundle") == until_end(greedy(model))


@pytest.mark.parametrize("operators", ["plain", "microsoft"])
def test_genai_takes_the_adapters(tmp_path: Path, operators: str) -> None:
    a = tiny(head_dim=16)
    adapter = random_adapter(a, 4, ("q_proj", "down_proj"), 1)
    weights = write_tiny_bundle(tmp_path, a, operators=operators, adapters={"one": adapter})
    write_hf(tmp_path / "merged", a, merged(weights, adapter))
    bundle = tmp_path / "bundle"
    found = greedy_of_genai(bundle, adapter_file(bundle, "one"))
    assert found == until_end(greedy(peer(tmp_path / "merged")[0]))
    assert found != greedy_of_genai(bundle)
