"""The bundle in the engines people use: transformers' numbers and transformers' greedy text."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
import openvino
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from transformers import AutoModelForCausalLM

from artifacts.onnx_bundle import (
    GRAPH,
    IDS,
    MASK,
    POSITIONS,
    OnnxModel,
    past_names,
    positions_of,
    present_names,
)
from stages.export.cases import Case, sweep
from tests.bundles import write_tiny_bundle
from tests.tiny_models import tiny

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-untied-one-kv": {"family": "llama", "tied_head": False, "kv_heads": 1},
    "mistral-all-kv": {"family": "mistral", "kv_heads": 4},
    "qwen2": {"family": "qwen2"},
    "qwen3-untied": {"family": "qwen3", "tied_head": False},
}
LONGEST = 14
PROMPTS = [[40, 41, 42, 43, 44], [100], list(range(60, 80))]
NEW = 12


@pytest.fixture(params=SHAPES, scope="module")
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    write_tiny_bundle(directory, tiny(**SHAPES[request.param]))
    return directory


def peer(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory / "hf").eval()


def peer_logits(model: Any, case: Case) -> np.ndarray:
    with torch.no_grad():
        return model(
            torch.tensor(case.ids_BT),
            attention_mask=torch.tensor(case.mask_BT).long(),
            position_ids=torch.tensor(case.positions_BT),
        ).logits.numpy()


class Runner:
    """One engine behind the graph's inputs and outputs."""

    def __init__(self, engine: str, bundle: Path):
        path = str(bundle / GRAPH)
        if engine == "openvino":
            compiled = openvino.Core().compile_model(
                path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
            )
            self.run = lambda feed: {
                name: value for key, value in compiled(feed).items() for name in key.get_names()
            }
        else:
            evaluator = ReferenceEvaluator(path)
            self.run = lambda feed: dict(
                zip(evaluator.output_names, evaluator.run(None, feed), strict=True)
            )

    def logits(self, shape: OnnxModel, case: Case) -> np.ndarray:
        """Logits of the new tokens; the past comes from the same engine."""
        past = shape.empty_past(len(case.ids_BT))
        edges = sorted({0, case.past, case.ids_BT.shape[1]})
        for begin, end in pairwise(edges):
            feed = {
                IDS: case.ids_BT[:, begin:end],
                MASK: case.mask_BT[:, :end].astype(np.int64),
                POSITIONS: case.positions_BT[:, begin:end],
            }
            for layer, pair in enumerate(past):
                feed.update(zip(past_names(layer), pair, strict=True))
            out = self.run(feed)
            past = [
                tuple(np.array(out[name]) for name in present_names(i)) for i in range(shape.layers)
            ]
        return np.array(out["logits"])


@pytest.mark.parametrize("engine", ["openvino", "reference evaluator"])
def test_other_engines_agree_with_transformers(exported: Path, engine: str) -> None:
    runner, model = Runner(engine, exported / "bundle"), peer(exported)
    shape = OnnxModel(exported / "bundle", threads=1)
    cases = sweep(shape.vocab_size, LONGEST, seed=1)
    if engine == "reference evaluator":
        cases = cases[::5]  # pure Python
    for case in cases:
        rows = case.mask_BT[:, case.past :]
        wanted = peer_logits(model, case)[:, case.past :]
        found = runner.logits(shape, case)
        assert np.isfinite(found).all(), case.name
        error = np.abs(found - wanted)[rows]
        assert error.size == 0 or error.max() <= 1e-5, case.name


def test_onnxruntime_agrees_with_transformers(exported: Path) -> None:
    ours, model = OnnxModel(exported / "bundle", threads=1), peer(exported)
    for case in sweep(ours.vocab_size, 40, seed=2):
        if case.past or case.kind == "masked row":
            continue
        found = ours.logits(case.ids_BT, case.mask_BT, case.positions_BT)
        error = np.abs(found - peer_logits(model, case))[case.mask_BT]
        assert error.max() <= 1e-5, case.name


def greedy_of_transformers(model: Any, prompt: list[int]) -> list[int]:
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=1,
        )
    return out[0, len(prompt) :].tolist()


def greedy_of_genai(directory: Path, prompt: list[int]) -> list[int]:
    model = og.Model(str(directory / "bundle"))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + NEW, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([prompt], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return list(generator.get_sequence(0))[len(prompt) :]


def greedy_of_ours(directory: Path, prompt: list[int]) -> list[int]:
    model = OnnxModel(directory / "bundle", threads=1)
    ids, past, found = np.array([prompt]), None, list[int]()
    for _ in range(NEW):
        total = len(prompt) + len(found)
        mask = np.ones((1, total), bool)
        positions = positions_of(mask)[:, -ids.shape[1] :]
        logits, past = model.forward(ids, mask, positions, past)
        found.append(int(logits[0, -1].argmax()))
        ids = np.array([found[-1:]])
    return found


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_greedy_text_is_the_same_token_for_token(exported: Path, prompt: list[int]) -> None:
    wanted = greedy_of_transformers(peer(exported), prompt)
    assert len(wanted) == NEW
    assert greedy_of_ours(exported, prompt) == wanted
    genai = greedy_of_genai(exported, prompt)
    end = wanted.index(0) + 1 if 0 in wanted else NEW  # genai stops at end-of-sequence
    assert genai == wanted[:end]


def test_genai_gives_the_same_logits(exported: Path) -> None:
    prompt = PROMPTS[2]
    model = og.Model(str(exported / "bundle"))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=32)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([prompt], np.int32))
    found = np.array(generator.get_output("logits"))[0, -1]
    with torch.no_grad():
        wanted = peer(exported)(torch.tensor([prompt])).logits[0, -1].numpy()
    assert np.abs(found - wanted).max() <= 1e-5
