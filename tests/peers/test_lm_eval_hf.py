"""lm-eval's own `hf` model on the same directory: the same choices and log-likelihoods as ours."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from artifacts.errors import BadInput
from artifacts.hf_model import read_model
from artifacts.tokenizer_files import read_tokenizer
from stages.evaluate import backends
from stages.evaluate.config import EvaluateConfig, LmEvalModel, TaskConfig
from stages.evaluate.kept import Kept
from stages.evaluate.lm import EngineLM
from stages.evaluate.models import load_model
from stages.evaluate.scoring import Outcome, evaluate
from stages.evaluate.sources import load_subjects
from stages.evaluate.suites import build
from stages.evaluate.text import TextCodec
from stages.export.bundle import write_bundle
from tests.evaluation import GREEDY, TEXTS, requests, row, write_ceval, write_mmlu, write_tokenizer
from tests.tiny_models import random_weights, tiny, write_hf

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["plain", "bos"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokenizer tells " A" from "A", without and with a token before texts."""
    directory = tmp_path_factory.mktemp("model")
    size = write_tokenizer(directory / "tokenizer")
    # Large head weights spread the log-likelihoods: no choice hangs on the last bit.
    architecture = tiny("qwen2", vocab_size=size, max_positions=512, tied_head=False)
    weights = random_weights(architecture, 5)
    weights["lm_head.weight"] *= 3
    write_hf(directory / "model", architecture, weights)
    write_tokenizer(directory / "model")
    if request.param == "bos":
        from tokenizers import Tokenizer, processors

        path = str(directory / "model/tokenizer.json")
        tokenizer = Tokenizer.from_file(path)
        bos = "<|endoftext|>"
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A", special_tokens=[(bos, 0)]
        )
        tokenizer.save(path)
    codec = TextCodec(directory / "model")
    assert codec.bos == ("<|endoftext|>" if request.param == "bos" else None)
    spaced, bare = (codec.encode([text])[0][-1] for text in (" A", "A"))
    assert spaced != bare
    return directory / "model"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def table(count: int) -> list[Any]:
        return [
            row(
                f"What of {rng.integers(1000)} is {'so ' * int(rng.integers(9))}?",
                "ABCD"[rng.integers(4)],
                [f"{word}{rng.integers(9)}" for word in ("one ", "two", "three of ", "四")],
            )
            for _ in range(count)
        ]

    for split, count in (("dev", 2), ("test", 20)):
        write_mmlu(folder, split, {"anatomy": table(count), "virology": table(count)})
    for split, count in (("dev", 2), ("val", 20)):
        write_ceval(folder, split, {"law": table(count)})
    return folder


def outcome(lm: Any, data: Path) -> Outcome:
    tasks = []
    for suite in ("mmlu", "ceval"):
        for form in ("letter", "continuation"):
            config = TaskConfig.model_validate(
                {"suite": suite, "form": form, "data": "local", "path": data, "num_fewshot": 2}
            )
            tasks.append(build(config, load_subjects(config, None)))
    return evaluate(lm, tasks)


def peer(model: Path, **settings: Any) -> HFLM:
    return HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=4, **settings)


def ours(kind: str, model: Path, tmp_path: Path) -> EngineLM:
    directory = model
    if kind == "onnx-bundle":
        directory = tmp_path / "bundle"
        directory.mkdir()
        write_bundle(directory, read_model(model), read_tokenizer(model), {})
    backend = backends.load(kind, directory, None, "CPU", 5)
    return EngineLM(backend, TextCodec(directory), GREEDY, 5)


@pytest.mark.parametrize("kind", ["hf-model", "onnx-bundle"])
def test_every_item_gets_the_same_choice(
    kind: str, model: Path, data: Path, tmp_path: Path
) -> None:
    expected = outcome(peer(model), data)
    found = outcome(ours(kind, model, tmp_path), data)
    assert len(found.items) == 2 * (40 + 20)
    assert [item.choice for item in found.items] == [item.choice for item in expected.items]
    difference = [
        np.abs(np.subtract(a.loglikelihoods, b.loglikelihoods)).max()
        for a, b in zip(found.items, expected.items, strict=True)
    ]
    assert max(difference) < TOLERANCE
    assert len({item.choice for item in found.items}) > 1
    for name, scores in found.tasks.items():
        assert scores.prompt_hash == expected.tasks[name].prompt_hash


def test_lm_evals_own_model_passes_through(model: Path, data: Path, tmp_path: Path) -> None:
    config = EvaluateConfig.model_validate(
        {
            "tasks": [{"suite": "mmlu", "data": "local", "path": data}],
            "lm_eval_model": {"name": "hf", "args": {"dtype": "float32", "device": "cpu"}},
            "batch_size": 4,
        }
    )
    kept = Kept(tmp_path / "kept")
    found = load_model(config, "hf-model", model, None, TextCodec(model), kept)
    assert (found.backend, found.dtype, found.max_length) == ("lm-eval hf", "float32", 512)
    assert outcome(found.lm, data).tasks == outcome(peer(model), data).tasks
    wrong = config.model_copy(update={"lm_eval_model": LmEvalModel(name="gguf-of-sorts")})
    with pytest.raises(BadInput, match="lm_eval_model: gguf-of-sorts cannot be loaded"):
        load_model(wrong, "hf-model", model, None, TextCodec(model), kept)


@pytest.mark.parametrize("kind", ["hf-model", "onnx-bundle"])
def test_free_texts_get_the_same_likelihoods(kind: str, model: Path, tmp_path: Path) -> None:
    theirs, mine = peer(model), ours(kind, model, tmp_path)
    expected = np.array(theirs.loglikelihood(requests(*TEXTS)))
    assert np.abs(np.array(mine.loglikelihood(requests(*TEXTS))) - expected).max() < TOLERANCE
    texts = ["Question: Number of what? " * 40, "one", "问题：" * 300]  # one window and several
    rolling = [
        Instance("loglikelihood_rolling", {}, (text,), 0, ("t", i, 1))
        for i, text in enumerate(texts)
    ]
    found = mine.loglikelihood_rolling(rolling)
    # By default it puts BOS between its prefix token, which is BOS, and the text: twice.
    wanted = peer(model, add_bos_token=False).loglikelihood_rolling(rolling)
    assert np.abs(np.subtract(found, wanted) / np.abs(wanted)).max() < 1e-5


@pytest.mark.parametrize("kind", ["hf-model", "onnx-bundle"])
def test_greedy_texts_are_the_same(kind: str, model: Path, tmp_path: Path) -> None:
    settings = {"until": [], "max_gen_toks": GREEDY.max_tokens, "do_sample": False}
    asked = [
        Instance("generate_until", {}, (f"Question: Number {k}", dict(settings)), 0, ("t", k, 1))
        for k in range(6)
    ]
    assert ours(kind, model, tmp_path).generate_until(asked) == peer(model).generate_until(asked)
