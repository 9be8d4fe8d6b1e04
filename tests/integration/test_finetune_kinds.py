"""Packing, full fine-tuning, the last layers, held-out comparison, several processes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor

from artifacts.adapter import read_adapter
from artifacts.hf_model import read_model
from artifacts.manifest import Manifest
from artifacts.store import artifact_path
from stages.engine import runtime, weights
from stages.engine.inference import InferenceModel
from stages.engine.model import Decoder, causal_bias, document_bias, rotation
from stages.engine.training import positions_in_documents
from stages.evaluate.text import TextCodec
from stages.finetune.config import FULL, SPEC, FinetuneConfig
from stages.finetune.held_out import look
from stages.finetune.prepare import prepare
from stages.finetune.run import run, run_full
from stages.finetune.templates import CHAT_JINJA
from stages.finetune.training import train
from stages.process import execute
from stages.spec import Request
from tests.tiny_models import as_artifact, random_weights, tiny, write_hf

ROWS = [
    {"prompt": f"Q: {question}\nA:", "completion": f" {answer}"}
    for question, answer in zip(
        "abcdefgh", ["one", "two", "3", "yes", "no", "zz", "x", "0 1"], strict=True
    )
]
CONFIG: dict[str, Any] = {
    "template": "plain",
    "max_length": 32,
    "steps": 4,
    "batch": {"global_size": 4},
    "optimizer": {"learning_rate": 0.01},
    "schedule": {"warmup_steps": 1},
    "device": "CPU",
}


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    runtime.start("CPU")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    as_artifact(tmp_path, "hf-model", lambda d: write_hf(d, tiny(layers=2)))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return tmp_path


def settings(place: Path, **changes: Any) -> dict[str, Any]:
    data = {"files": [str(place / "rows.jsonl")], "format": "completion"}
    return {**CONFIG, "data": data, **changes}


def make(place: Path, **changes: Any) -> tuple[Manifest, Path]:
    spec, work = (SPEC, run) if "method" not in changes else (FULL, run_full)
    inputs = {"model": str(artifact_path(place, "hf-model", "1" * 64))}
    request = Request(spec.name, settings(place, **changes), inputs, str(place))
    manifest = execute(spec, work, request)
    return manifest, artifact_path(place, spec.makes, manifest.identity)


@pytest.mark.parametrize("changes", [{}, {"family": "mistral", "sliding_window": 4}])
def test_packed_and_alone_the_logits_are_the_same(changes: dict[str, Any]) -> None:
    shape = tiny(layers=2, **changes)
    decoder = Decoder(shape)
    weights.load(decoder, shape, random_weights(shape))
    ids = np.random.default_rng(2).integers(0, shape.vocab_size, 20).astype(np.int32)
    documents = np.array([[1] * 9 + [2] * 4 + [3] * 7])

    def logits(row: np.ndarray, positions: np.ndarray, bias: np.ndarray) -> np.ndarray:
        cos, sin = rotation(shape, positions)
        inputs = (row[None], cos, sin, bias)
        return decoder(*map(Tensor, inputs)).asnumpy()

    window = shape.sliding_window
    bias = document_bias(documents, window)
    packed = logits(ids, positions_in_documents(documents), bias)
    blind = logits(ids, np.arange(20)[None], causal_bias(20, window))
    begin = 0
    for size in (9, 4, 7):
        part = slice(begin, begin + size)
        alone = logits(ids[part], np.arange(size)[None], causal_bias(size, window))
        assert np.abs(packed[part] - alone).max() <= 1e-5
        if begin:  # what a neighbour that is seen would do
            assert np.abs(blind[part] - alone).max() > 0.01
        begin += size


def test_eight_examples_are_learned_by_heart_and_generation_ends(place: Path) -> None:
    changes = {"steps": 150, "packing": True, "method": "full"}
    config = FinetuneConfig.model_validate(settings(place, **changes))
    model_path = artifact_path(place, "hf-model", "1" * 64)
    made = prepare(config, {"model": model_path})
    assert len(made.batches.rows) < 8
    end = train(made.model, config, made.batches, made.steps, place)
    tuned = InferenceModel(made.model.architecture, end.weights)
    assert end.history[-1, 0] < 0.02
    assert look(tuned, made.dataset.examples).exact.all()
    assert not look(InferenceModel.load(model_path), made.dataset.examples).exact.any()

    tokenizer = made.encoder.tokenizer
    for row in ROWS:
        ids = tokenizer.encode(row["prompt"]).ids
        said: list[int] = []
        while len(said) < 12 and made.encoder.eos_id not in said:
            said.append(int(tuned.logits(np.array([ids + said]))[0, -1].argmax()))
        assert said[-1] == made.encoder.eos_id
        assert tokenizer.decode(said[:-1]) == row["completion"]


def test_all_weights_or_those_of_the_last_layers_and_what_is_held_out(place: Path) -> None:
    base = read_model(artifact_path(place, "hf-model", "1" * 64)).weights
    manifest, whole = make(place, method="full", held_out=0.25)
    trained = read_model(whole).weights
    assert all(not np.array_equal(base[name], trained[name]) for name in base)
    headline = manifest.headline
    assert headline["trainable_parameters"] == read_model(whole).architecture.parameter_count()
    assert headline["examples"] == 6
    figures = json.loads((whole / "held_out.json").read_text())
    assert figures["examples"] == 2
    assert figures["tuned"]["loss"] != figures["base"]["loss"] == headline["held_out_loss_base"]
    assert (whole / "logs" / "held_out.png").read_bytes()[:4] == b"\x89PNG"
    assert (whole / "tokenizer.json").is_file()

    _, last = make(place, method="last_layers", last_layers=1)
    trained = read_model(last).weights
    changed = {name for name in base if not np.array_equal(base[name], trained[name])}
    assert changed == {name for name in base if name.startswith("model.layers.1.")}


def test_a_model_tuned_on_conversations_has_their_template(place: Path) -> None:
    _, plain = make(place, method="full", steps=1)
    assert TextCodec(plain).chat_template is None
    _, chat = make(place, method="full", steps=1, template="chatml", max_length=64)
    assert TextCodec(chat).chat_template == CHAT_JINJA


def test_two_processes_are_one(place: Path) -> None:
    alone, one = make(place, batch={"global_size": 4})
    both, two = make(place, batch={"global_size": 4}, parallel={"data": 2})
    for name in ("first_loss", "final_loss"):
        assert both.headline[name] == pytest.approx(alone.headline[name], abs=1e-5)
    ours, theirs = read_adapter(one).tensors, read_adapter(two).tensors
    for module, (_, b) in ours.items():
        np.testing.assert_allclose(theirs[module][1], b, atol=2e-4)
    assert any(b.any() for _, b in theirs.values())
    assert not list(two.glob(".ranks")), sorted(two.iterdir())
