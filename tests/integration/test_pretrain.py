"""Pretraining as a user runs it: in its own process, killed, resumed, accumulated, in parallel."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.architecture import read_architecture
from artifacts.corpus import CorpusWriter
from artifacts.manifest import (
    Manifest,
    content_digest,
    list_files,
    read_manifest,
    write_manifest,
)
from artifacts.store import artifact_path
from artifacts.weights import Weights
from stages.pretrain.config import SPEC
from stages.pretrain.rolling import read_state
from tests.tiny_models import VOCAB, write_tokenizer

STEPS = 60
CONFIG: dict[str, Any] = {
    "model": {
        "hidden_size": 32,
        "layers": 1,
        "heads": 4,
        "kv_heads": 2,
        "intermediate_size": 48,
        "init_std": 0.06,
    },
    "batch": {"sequence_length": 16, "global_size": 4},
    "steps": STEPS,
    "optimizer": {"learning_rate": 4e-3},
    "schedule": {"warmup_steps": 5},
    "checkpoint": {"every": 10, "keep": 2},
    "validation": {"every": 20, "batches": 2},
    "seed": 3,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a store that holds one corpus of arithmetic sequences."""
    place = tmp_path_factory.mktemp("pretrain")
    directory = artifact_path(place / "store", "corpus", "c" * 64)
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with CorpusWriter(directory, vocab_size=VOCAB, eos_id=0, pad_id=1) as writer:
        for i in range(120):
            ids = (rng.integers(4, 20) + np.arange(rng.integers(5, 40))) % 200 + 4
            writer.add("train" if i % 6 else "validation", ids, len(ids))
    write_tokenizer(directory)
    files = list_files(directory)
    manifest = Manifest(
        kind="corpus",
        stage="corpus",
        code_version=1,
        identity="c" * 64,
        digest=content_digest("corpus", files),
        files=files,
        inputs={},
        sources=[],
        config={},
        seeds={},
        packages={},
        host={},
        started="",
        finished="",
        headline={},
    )
    write_manifest(directory, manifest)
    return place


class Stage:
    """One request in a store of its own, so that equal requests do not find each other's work."""

    def __init__(self, place: Path, name: str, **changes: Any):
        self.store = place / name
        config = json.loads(json.dumps(CONFIG))
        for key, value in changes.items():
            config[key] = config.get(key, {}) | value if isinstance(value, dict) else value
        self.request = place / f"{name}.json"
        corpus = artifact_path(place / "store", "corpus", "c" * 64)
        request = {
            "stage": "pretrain",
            "config": config,
            "inputs": {"corpus": str(corpus)},
            "store": str(self.store),
        }
        self.request.write_text(json.dumps(request))

    def start(self, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "stages.pretrain", str(self.request)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        )

    def run(self, code: int = 0) -> tuple[str, str]:
        process = self.start()
        out, err = process.communicate(timeout=900)
        assert process.returncode == code, out + err
        return out, err

    @property
    def artifact(self) -> Path:
        (found,) = self.store.glob("checkpoint/[0-9a-f]*")
        return found

    @property
    def checkpoints(self) -> list[Path]:
        return sorted(self.store.glob("checkpoint/.*.partial/checkpoints/step-*"))

    def wait_for_checkpoint(self, process: "subprocess.Popen[str]", more_than: int = 0) -> None:
        while not any(int(path.name[5:]) > more_than for path in self.checkpoints):
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)

    def rows(self) -> list[dict[str, str]]:
        with (self.artifact / "logs" / "metrics.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def losses(self) -> np.ndarray:
        return np.array([float(row["loss"]) for row in self.rows()])


@pytest.fixture(scope="module")
def whole(place: Path) -> Stage:
    """The uninterrupted run that the others are compared with."""
    stage = Stage(place, "whole")
    stage.run()
    return stage


def test_the_artifact_is_a_model_that_has_learned(whole: Stage) -> None:
    manifest = read_manifest(whole.artifact)
    assert manifest.kind == SPEC.makes
    shape = read_architecture(whole.artifact)
    Weights(whole.artifact).check(shape.tensor_shapes())
    losses = whole.losses()
    assert len(losses) == STEPS + 1
    assert abs(losses[0] - np.log(VOCAB)) < 0.3
    headline = manifest.headline
    assert headline["train_loss"] == pytest.approx(losses[-20:].mean(), abs=1e-6)
    assert headline["train_loss"] < losses[0] - 1.0
    assert headline["validation_loss"] < losses[0] - 1.0
    assert headline["steps"] == STEPS
    assert headline["tokens"] == STEPS * 4 * 16
    assert headline["parameters"] == shape.parameter_count()
    assert read_state(whole.artifact / "training" / "state.json").step == STEPS
    names = {path.name for path in whole.artifact.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "trainer_state.json",
        "training",
        "logs",
        "manifest.json",
    }
    validated = [int(row["step"]) for row in whole.rows() if row["validation_loss"]]
    assert validated == [0, 20, 40, 60]


def test_killed_stopped_and_resumed_is_bitwise_the_same(place: Path, whole: Stage) -> None:
    stage = Stage(place, "killed")
    process = stage.start()
    stage.wait_for_checkpoint(process)
    process.kill()
    process.communicate()
    assert stage.checkpoints  # it had not finished
    # A checkpoint cut short by the crash: the one before it is used, and that is said.
    process = stage.start()
    stage.wait_for_checkpoint(process, more_than=10)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begin < 10
    assert "goes on after step" in out
    assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM), out + err
    newest = stage.checkpoints[-1]
    with (newest / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    out, err = stage.run()
    assert newest.name in err
    assert "model.safetensors has 1000 bytes" in err
    assert read_manifest(stage.artifact).digest == read_manifest(whole.artifact).digest
    assert [row["step"] for row in stage.rows()] == [row["step"] for row in whole.rows()]
    assert np.array_equal(stage.losses(), whole.losses())


def test_accumulation_changes_neither_rates_nor_losses(place: Path, whole: Stage) -> None:
    stage = Stage(place, "accumulated", batch={"per_device_size": 1})
    stage.run()
    for name in ("step", "learning_rate"):
        assert [row[name] for row in stage.rows()] == [row[name] for row in whole.rows()]
    assert np.abs(stage.losses() - whole.losses()).max() <= 1e-5


def test_two_processes_stopped_and_resumed_train_like_one(place: Path, whole: Stage) -> None:
    stage = Stage(place, "parallel", parallel={"data": 2})
    process = stage.start()
    stage.wait_for_checkpoint(process)
    family = _children(process.pid)
    assert len(family) == 3  # scheduler and two ranks
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begin < 10
    assert process.returncode == 128 + signal.SIGTERM, out + err
    assert "wrote a checkpoint at step" in out
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    stage.run()
    assert np.abs(stage.losses() - whole.losses()).max() <= 1e-5
    ours = read_manifest(stage.artifact).headline
    theirs = read_manifest(whole.artifact).headline
    assert abs(ours["validation_loss"] - theirs["validation_loss"]) <= 1e-5
    assert not list(stage.artifact.glob(".*"))


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(place: Path) -> None:
    model = CONFIG["model"] | {"init_std": 1e20}
    stage = Stage(place, "not-finite", model=model, max_nonfinite_steps=3)
    _, err = stage.run(code=1)
    assert "not finite in 3 steps in a row" in err
    assert "optimizer.learning_rate 1.3e-03 instead of 4.0e-03" in err
    assert not list(stage.store.glob("checkpoint/[0-9a-f]*"))


def test_a_corpus_shorter_than_one_sequence_is_bad_input(place: Path) -> None:
    stage = Stage(place, "short", batch={"sequence_length": 100_000})
    _, err = stage.run(code=2)
    assert "sequence_length: is 100000" in err
    assert "training tokens" in err


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
