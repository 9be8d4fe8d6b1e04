"""A thousand published questions, five examples each: lm-eval's own `hf` model answers the same.

MINDCYCLE_DATA names the folder that holds the files, as in test_evaluate_real_files.py. Where they
are absent, test_lm_eval_hf.py compares on questions that it writes.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.models.huggingface import HFLM

from artifacts.hf_model import read_model
from artifacts.tokenizer_files import read_tokenizer
from stages.evaluate import backends
from stages.evaluate.config import TaskConfig
from stages.evaluate.lm import EngineLM
from stages.evaluate.scoring import Outcome, evaluate
from stages.evaluate.sources import load_subjects
from stages.evaluate.suites import build
from stages.evaluate.text import TextCodec
from stages.export.bundle import write_bundle
from tests.evaluation import GREEDY, write_bpe
from tests.tiny_models import random_weights, tiny, write_hf

DATA = Path(os.environ.get("MINDCYCLE_DATA", Path(__file__).parents[3] / "shared" / "data"))
TOLERANCE = 1e-4
SUITES = {"mmlu": ("mmlu", 9), "ceval": ("ceval", 10)}
"""Folder, and questions of each subject: 57 times 9 and 52 times 10 are 1,033."""

pytestmark = pytest.mark.skipif(
    not (DATA / "mmlu").is_dir(), reason="MMLU's and C-Eval's files are not here"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    texts = [
        path.read_text(encoding="utf-8")
        for suite in ("mmlu/data", "ceval")
        for path in sorted((DATA / suite / "dev").glob("*.csv"))
    ]
    # As prompts have them: " A" after "Answer:" is not the "A" that begins a line.
    texts.append("\nA. B\nB. C\nC. D\nD. A\nAnswer: A\nAnswer: B\nAnswer: C\nAnswer: D" * 200)
    size = write_bpe(directory / "tokenizer", texts, 4000)
    architecture = tiny("llama", vocab_size=size, max_positions=8192, tied_head=False)
    weights = random_weights(architecture, 5)
    weights["lm_head.weight"] *= 3
    write_hf(directory / "model", architecture, weights)
    write_bpe(directory / "model", texts, 4000)
    spaced, bare = (TextCodec(directory / "model").encode([text])[0] for text in (" A", "A"))
    assert len(spaced) == len(bare) == 1
    assert spaced.tolist() != bare.tolist()
    return directory / "model"


def outcome(lm: Any) -> Outcome:
    tasks = []
    for suite, (folder, limit) in SUITES.items():
        config = TaskConfig.model_validate(
            {"suite": suite, "data": "local", "path": DATA / folder, "num_fewshot": 5}
            | {"limit": limit}
        )
        tasks.append(build(config, load_subjects(config, None)))
    return evaluate(lm, tasks)


def ours(kind: str, directory: Path) -> Outcome:
    backend = backends.load(kind, directory, None, "CPU", 8)
    return outcome(EngineLM(backend, TextCodec(directory), GREEDY, 8))


def test_every_real_item_gets_the_same_choice(model: Path, tmp_path: Path) -> None:
    peer = HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=8)
    expected = outcome(peer)
    write_bundle(tmp_path, read_model(model), read_tokenizer(model), {})
    for found in (ours("hf-model", model), ours("onnx-bundle", tmp_path)):
        assert len(found.items) == len(expected.items) > 1000
        for item, other in zip(found.items, expected.items, strict=True):
            assert item.id == other.id
            assert item.choice == other.choice, item
            difference = np.subtract(item.loglikelihoods, other.loglikelihoods)
            assert np.abs(difference).max() < TOLERANCE, item
        assert len({item.choice for item in found.items}) > 1
        for name, scores in found.tasks.items():
            assert scores.prompt_hash == expected.tasks[name].prompt_hash
