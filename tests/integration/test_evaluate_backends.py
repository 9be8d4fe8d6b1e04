"""MindSpore and onnxruntime behind the same interface: the same choices, in any batch."""

import functools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lm_eval.api.instance import Instance

from artifacts.adapter import Adapter, Base, read_adapter, write_adapter
from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.hf_model import read_model
from artifacts.json_files import read_object
from artifacts.manifest import read_manifest
from artifacts.tokenizer_files import read_tokenizer, write_object
from stages.evaluate import backends
from stages.evaluate.lm import EngineLM
from stages.evaluate.run import scored_model
from stages.evaluate.text import TextCodec
from stages.export.bundle import write_bundle
from tests.evaluation import GREEDY, TEXTS, letters, requests, write_tokenizer
from tests.tiny_models import as_artifact, random_weights, tiny, write_hf


def shape(directory: Path) -> Architecture:
    return tiny("qwen3", vocab_size=write_tokenizer(directory), max_positions=96)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")

    def fill(directory: Path) -> None:
        architecture = shape(store / "tokenizer")
        write_hf(directory, architecture, random_weights(architecture, 3))
        write_tokenizer(directory)

    return as_artifact(store, "hf-model", fill)


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle")
    write_bundle(directory, read_model(model), read_tokenizer(model), {})
    return directory


@pytest.fixture(scope="module")
def adapter(model: Path) -> Path:
    rng = np.random.default_rng(4)
    architecture = read_model(model).architecture
    tensors = {}
    for name, size in architecture.tensor_shapes().items():
        if name.endswith(("q_proj.weight", "down_proj.weight")):
            a, b = rng.standard_normal((2, size[1])), rng.standard_normal((size[0], 2))
            module = name.removesuffix(".weight")
            tensors[module] = (a.astype(np.float32) / 8, b.astype(np.float32) / 8)
    manifest = read_manifest(model)
    made = Adapter(
        rank=2,
        alpha=4,
        targets=("q_proj", "down_proj"),
        tensors=tensors,
        base=Base(manifest.digest, manifest.identity),
    )
    return as_artifact(model.parent.parent, "adapter", lambda path: write_adapter(path, made))


def test_every_end_token_of_the_model_is_its_backends(model: Path, tmp_path: Path) -> None:
    several, bundle = tmp_path / "several", tmp_path / "bundle"
    shutil.copytree(model, several)
    path = several / "config.json"
    write_object(path, {**read_object(path), "eos_token_id": [0, 3]})
    bundle.mkdir()
    write_bundle(bundle, read_model(several), read_tokenizer(several), {})
    for kind, directory in (("hf-model", several), ("onnx-bundle", bundle)):
        assert backends.load(kind, directory, None, "CPU", 1).eos_ids == [0, 3]


ASKED = letters(20) + requests(*TEXTS)


@functools.cache
def answers(
    kind: str, directory: Path, adapter: Path | None = None, batch_size: int = 5
) -> np.ndarray:
    backend = backends.load(kind, directory, adapter, "CPU", batch_size)
    lm = EngineLM(backend, TextCodec(directory), GREEDY, batch_size)
    return np.array(lm.loglikelihood(ASKED))


def choices(found: np.ndarray) -> list[int]:
    best: list[int] = found[:80, 0].reshape(20, 4).argmax(1).tolist()
    return best


@pytest.mark.parametrize("kind", ["hf-model", "onnx-bundle"])
def test_batches_change_no_choice(kind: str, model: Path, bundle: Path) -> None:
    directory = model if kind == "hf-model" else bundle
    one, three, sixteen = (answers(kind, directory, batch_size=size) for size in (1, 3, 16))
    assert choices(one) == choices(three) == choices(sixteen)
    assert np.abs(one - three).max() < 1e-5
    assert np.abs(one - sixteen).max() < 1e-5


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sees 20 tokens back."""
    directory = tmp_path_factory.mktemp("narrow")
    size = write_tokenizer(directory)
    write_hf(directory, tiny("mistral", vocab_size=size, max_positions=96, sliding_window=20))
    write_tokenizer(directory)
    return directory


@pytest.mark.parametrize("kind", ["hf-model", "onnx-bundle", "adapter", "narrow"])
def test_a_shared_prefix_changes_no_answer(
    kind: str,
    model: Path,
    bundle: Path,
    adapter: Path,
    narrow: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = {"onnx-bundle": bundle, "narrow": narrow}.get(kind, model)
    backend = backends.load(
        "onnx-bundle" if kind == "onnx-bundle" else "hf-model",
        directory,
        adapter if kind == "adapter" else None,
        "CPU",
        3,
    )
    examples = ["Answer: one two three four\n" * 4, "答案：one two three of what?\n" * 3]
    asked = [
        request
        for k in range(14)
        for request in requests(
            *((f"{examples[k % 2]}Number {k % 9}?\nAnswer:", t) for t in (" A", " B", " one two"))
        )
    ]
    monkeypatch.setattr("stages.evaluate.shared.PASS", 1)  # the prompts here are short
    read: list[int] = []
    honest = type(backend).read
    monkeypatch.setattr(
        type(backend), "read", lambda self, ids: read.append(len(ids)) or honest(self, ids)
    )

    def found() -> np.ndarray:
        lm = EngineLM(backend, TextCodec(directory), GREEDY, 3)
        return np.array(lm.loglikelihood(asked))

    remembered = found()
    assert len(read) == 4  # two subjects, of letters and of longer answers
    for size in (1, 16):
        again = np.array(EngineLM(backend, TextCodec(directory), GREEDY, size).loglikelihood(asked))
        assert np.abs(again - remembered).max() < 1e-5
        letters_of = (again[:, 0].reshape(14, 3), remembered[:, 0].reshape(14, 3))
        assert letters_of[0].argmax(1).tolist() == letters_of[1].argmax(1).tolist()
    passes = len(read)
    monkeypatch.setattr("stages.evaluate.shared.LEAST", 10**6)
    alone = found()
    assert len(read) == passes
    assert np.abs(remembered - alone).max() < 1e-5
    assert remembered[:, 0].std() > 0.1


def test_both_engines_agree(model: Path, bundle: Path) -> None:
    ours, theirs = answers("hf-model", model), answers("onnx-bundle", bundle)
    assert np.abs(ours - theirs).max() < 1e-4
    assert choices(ours) == choices(theirs)
    assert (ours[:, 1] == theirs[:, 1]).all()
    assert ours[:, 0].std() > 0.1


def test_both_engines_write_the_same_texts(model: Path, bundle: Path) -> None:
    texts = []
    for kind, directory in (("checkpoint", model), ("onnx-bundle", bundle)):
        backend = backends.load(kind, directory, None, "CPU", 4)
        sampling = GREEDY.model_copy(update={"do_sample": True, "temperature": 0.7})
        lm = EngineLM(backend, TextCodec(directory), sampling, 4)
        asked = [Instance("generate_until", {}, (f"Q {k}", {}), 0, ("t", k, 1)) for k in range(6)]
        texts.append(lm.generate_until(asked))
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_an_unmerged_adapter_is_the_merged_model(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    read = read_adapter(adapter)
    weights = dict(read_model(model).weights)
    for module, (a, b) in read.tensors.items():
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + read.scaling * (b @ a)
    write_hf(tmp_path / "merged", shape(tmp_path / "tokenizer"), weights)
    write_tokenizer(tmp_path / "merged")
    beside, merged = answers("hf-model", model, adapter), answers("hf-model", tmp_path / "merged")
    assert np.abs(beside - merged).max() < 1e-4
    assert np.abs(beside - answers("hf-model", model)).max() > 0.01
    assert scored_model(model, adapter).adapter == read_manifest(adapter).digest


def test_an_adapter_in_a_bundle_is_the_same_adapter(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    found = read_model(model)
    adapters = {"mine": read_adapter(adapter)}
    write_bundle(tmp_path, found, read_tokenizer(model), {}, adapters=adapters)
    expected = answers("hf-model", model, adapter)
    for name, wanted in (("mine", expected), (None, answers("hf-model", model))):
        backend = backends.load("onnx-bundle", tmp_path, None, "CPU", 5, name)
        lm = EngineLM(backend, TextCodec(tmp_path), GREEDY, 5)
        assert np.abs(np.array(lm.loglikelihood(ASKED)) - wanted).max() < 1e-4
    with pytest.raises(BadInput, match=r"bundle_adapter: is 'other'; .* has mine"):
        backends.load("onnx-bundle", tmp_path, None, "CPU", 5, "other")
    with pytest.raises(BadInput, match="bundle_adapter: is 'mine'; the model is a hf-model"):
        backends.load("hf-model", model, None, "CPU", 5, "mine")


def test_adapters_that_do_not_belong_are_refused(
    model: Path, bundle: Path, adapter: Path, tmp_path: Path
) -> None:
    foreign = replace(read_adapter(adapter), base=Base("f" * 64, "e" * 64))
    other = as_artifact(tmp_path, "adapter", lambda path: write_adapter(path, foreign))
    with pytest.raises(BadInput, match="belongs to the base with digest ffff"):
        scored_model(model, other)
    with pytest.raises(BadInput, match=r"inputs.adapter: an onnx-bundle takes no adapter"):
        backends.load("onnx-bundle", bundle, adapter, "CPU", 4)


def test_forward_passes_are_cut_to_the_memory_allowed(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = answers("onnx-bundle", bundle, batch_size=16)
    monkeypatch.setattr(backends, "LOGITS_BYTES", 1)
    answers.cache_clear()
    assert np.abs(answers("onnx-bundle", bundle, batch_size=16) - whole).max() < 1e-5
