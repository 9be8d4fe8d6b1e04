"""Fine-tuning as a process on a tiny model: what it writes, what it leaves alone, resuming."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest

from artifacts.adapter import read_adapter
from artifacts.architecture import read_architecture
from artifacts.manifest import list_files, read_manifest
from stages.engine.inference import InferenceModel
from stages.finetune.dataset import Batches, alone, build_dataset
from stages.finetune.examples import Example, Turn
from stages.finetune.source import read_base
from tests.tiny_models import as_artifact, tiny, write_hf

ROWS = [{"instruction": f"Q{i % 10}?", "output": "abcde"[i % 5]} for i in range(20)]
CONFIG: dict[str, Any] = {
    "template": "question",
    "max_length": 64,
    "steps": 60,
    "batch": {"global_size": 8},
    "optimizer": {"learning_rate": 0.02},
    "lora": {"rank": 4, "alpha": 8},
    "checkpoint": {"every": 5},
    "device": "CPU",
}


def prepare(tmp_path: Path, shape: dict[str, Any] | None = None, **config: Any) -> Path:
    """A store with a base model, a data file and a request; gives the request's path."""
    root = tmp_path / "store"
    model = as_artifact(
        root, "hf-model", lambda path: write_hf(path, tiny(**({"layers": 1} | (shape or {}))))
    )
    data = tmp_path / "data.jsonl"
    if not data.exists():
        data.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    own = {"files": [str(data)], "format": "alpaca"}
    request = {
        "stage": "finetune",
        "config": CONFIG | {"data": own} | config,
        "inputs": {"model": str(model)},
        "store": str(root),
    }
    path = tmp_path / "store.json"
    path.write_text(json.dumps(request))
    return path


def command(request: Path) -> list[str]:
    return [sys.executable, "-m", "stages.finetune", str(request)]


def finetune(request: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(request), capture_output=True, text=True, timeout=300)


def adapter_of(request: Path) -> Path:
    (found,) = request.with_suffix("").glob("adapter/[!.]*")
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of a run of 120 steps that nobody disturbed."""
    request = prepare(tmp_path_factory.mktemp("whole"), steps=120)
    done = finetune(request)
    assert done.returncode == 0, done.stderr
    return adapter_of(request)


def test_it_learns_writes_an_adapter_and_leaves_the_base_alone(tmp_path: Path) -> None:
    request = prepare(tmp_path)
    (base,) = request.with_suffix("").glob("hf-model/*")
    before = list_files(base)
    done = finetune(request)
    assert done.returncode == 0, done.stderr
    assert "finetune  60/60 steps" in done.stdout
    assert list_files(base) == before

    directory = adapter_of(request)
    manifest = read_manifest(directory)
    headline = manifest.headline
    assert (headline["examples"], headline["dropped"], headline["steps"]) == (20, 0, 60)
    assert headline["first_loss"] - headline["final_loss"] > 2
    names = {entry.path for entry in manifest.files}
    assert names == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.json",
        "template.json",
        "data.json",
        "data.md",
        "logs/metrics.csv",
        "logs/loss.png",
    }
    adapter = read_adapter(directory)
    adapter.check_base(read_manifest(base))
    adapter.check_fits(read_architecture(base))
    assert adapter.parameter_count() == headline["trainable_parameters"]
    assert all(b.any() for _, b in adapter.tensors.values())  # every pair has learned
    rows = (directory / "logs/metrics.csv").read_text().splitlines()
    assert len(rows) == 61
    assert rows[0] == "step,loss,tokens_with_loss,gradient_norm,learning_rate"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_and_started_again_it_ends_with_the_same_bytes(
    tmp_path: Path, whole: Path, how: signal.Signals
) -> None:
    broken = prepare(tmp_path, steps=120)
    saved = None
    process = subprocess.Popen(command(broken), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None and not saved:
            saved = next(broken.with_suffix("").glob("adapter/.*.partial/state.safetensors"), None)
            time.sleep(0.001)
    finally:
        os.kill(process.pid, how)
        _, said = process.communicate()
    assert process.returncode == (-how if how == signal.SIGKILL else 128 + how), said
    assert saved is not None
    assert saved.exists(), "the kill came too late to prove anything"
    again = finetune(broken)
    assert again.returncode == 0, again.stderr
    assert "going on after step" in again.stdout
    second = adapter_of(broken)
    assert read_manifest(whole).digest == read_manifest(second).digest
    for file in ("adapter_model.safetensors", "logs/metrics.csv"):
        assert (whole / file).read_bytes() == (second / file).read_bytes()


def test_eight_conversations_can_be_learned_by_heart_and_then_end(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Name {i}"},
                {"role": "assistant", "content": "ok"},
                {"role": "user", "content": "and?"},
                {"role": "assistant", "content": name},
            ]
        }
        for i, name in enumerate(["ash", "elm", "fir", "oak", "yew", "box", "bay", "fig"])
    ]
    data = tmp_path / "chat.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    request = prepare(
        tmp_path,
        data={"files": [str(data)], "format": "messages"},
        template="chatml",
        max_length=128,
        steps=250,
        lora={"rank": 8, "alpha": 16},
        shape={"max_positions": 128},
    )
    done = finetune(request)
    assert done.returncode == 0, done.stderr
    (base,) = request.with_suffix("").glob("hf-model/*")
    model = InferenceModel.load(base, adapter_of(request))
    template = json.loads((adapter_of(request) / "template.json").read_text())
    _, encoder = read_base(base, 128)
    for row in rows:
        *asked, answer = row["messages"]
        prompt = jinja2.Template(template["chat_template"], keep_trailing_newline=True).render(
            messages=asked, add_generation_prompt=True
        )
        ids = encoder.tokenizer.encode(prompt).ids
        said: list[int] = []
        while len(said) < 8 and (not said or said[-1] != encoder.eos_id):
            said.append(int(model.logits(np.array([ids + said]))[0, -1].argmax()))
        text = encoder.tokenizer.decode(said, skip_special_tokens=False)
        assert text == answer["content"] + template["end_of_turn"] + template["end"]


@pytest.mark.parametrize(
    ("line", "config", "said"),
    [
        ('{"instruction": "A", ', {}, "data.jsonl:2: is no JSON"),
        ('{"instruction": "A", "output": "b"}', {"max_length": 65}, "the base has 64 positions"),
        ('{"instruction": "A", "output": "b"}', {"max_length": 8}, "none of 2 examples can be"),
        ('{"instruction": "A", "output": "b"}', {"data": "world"}, "inputs.corpus: is missing"),
    ],
)
def test_wrong_input_ends_with_2_and_a_sentence(
    tmp_path: Path, line: str, config: dict[str, Any], said: str
) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    done = finetune(prepare(tmp_path, **config))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_micro_batches_with_unequal_answers_make_the_same_step(tmp_path: Path) -> None:
    from stages.finetune.config import FinetuneConfig
    from stages.finetune.training import AdapterTrainer

    write_hf(tmp_path, tiny(layers=1))
    model, encoder = read_base(tmp_path, 64)
    examples = [
        Example(f"f:{i}", (Turn("user", "q"), Turn("assistant", "a" * (1 + 3 * i))))
        for i in range(8)
    ]
    dataset = build_dataset(examples, "alpaca", encoder, 64)
    batch = Batches([alone(e) for e in dataset.examples], 8, 0, encoder.eos_id).batch(0)

    def after_one_step(size: int) -> tuple[float, np.ndarray]:
        config = FinetuneConfig.model_validate(
            CONFIG
            | {"data": "world", "template": "alpaca"}
            | {"batch": {"global_size": 8, "per_device_size": size}}
        )
        trainer = AdapterTrainer(model, config)
        row = trainer.step(*batch, 0.02)
        pairs = trainer.tensors()
        return float(row[0]), np.concatenate([b.reshape(-1) for _, b in pairs.values()])

    whole_loss, whole = after_one_step(8)
    for size in (4, 1):
        loss, adapter = after_one_step(size)
        assert loss == pytest.approx(whole_loss, abs=1e-5)
        np.testing.assert_allclose(adapter, whole, atol=2e-4)  # Adam's first step is its sign
    assert np.abs(whole).max() == pytest.approx(0.02, rel=0.01)
