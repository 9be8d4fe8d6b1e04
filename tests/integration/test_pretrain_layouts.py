"""Pretraining in layouts as a user runs it: a rank killed, gone on with, in another layout."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.manifest import read_manifest
from tests.integration.test_pretrain import Stage, place

assert place  # a fixture
MODEL = {
    "hidden_size": 32,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "intermediate_size": 48,
    "init_std": 0.06,
}
CHANGES: dict[str, Any] = {
    "model": MODEL,
    "steps": 100,
    "batch": {"per_device_size": 1},
    "checkpoint": {"every": 10, "keep": 2},
    "validation": {"every": 50, "batches": 1},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {"parallel": {"tensor": 2}},
    "pipeline": {"parallel": {"pipeline": 2}},
    "zero": {"parallel": {"data": 2, "zero": 1}},
}
ACCUMULATES = {
    # A rank, how often it accumulates in a step, and what does.
    "tensor": (1, 4, "stages.engine.training:Trainer.accumulate"),
    "pipeline": (1, 4, "stages.engine.pipeline:PipelineTrainer._turn"),
    "zero": (1, 2, "stages.engine.training:Trainer.accumulate"),
}
WRITES = {
    # A rank that writes, the call in a checkpoint at which it dies, and what writes.
    "tensor": (1, 30, "stages.pretrain.rolling:SafetensorsFile.fill"),
    "pipeline": (1, 20, "stages.pretrain.rolling:SafetensorsFile.fill"),
    "zero": (0, 2, "stages.pretrain.rolling:_write"),
}
KILLER = Path(__file__).parent.parent / "killer"


@pytest.fixture(scope="module")
def one(place: Path) -> Stage:
    """One process, uninterrupted."""
    stage = Stage(place, "one", **CHANGES)
    stage.run()
    return stage


def run_until_killed(stage: Stage, rank: int, call: int, where: str) -> str:
    """Kill a rank at a call of a function; returns what was said on standard output."""
    path = os.pathsep.join([str(KILLER), os.environ.get("PYTHONPATH", "")])
    process = stage.start(PYTHONPATH=path, TEST_KILL=f"{rank} {call} {where}")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1, out + err
    assert f"rank {rank} was killed by signal 9" in err
    return out


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", LAYOUTS)
def test_killed_in_an_accumulation_and_in_a_checkpoint_the_weights_are_bitwise_the_same(
    place: Path,
    one: Stage,
    name: str,
) -> None:
    whole = Stage(place, f"{name}-whole", **CHANGES, **LAYOUTS[name])
    whole.run()
    assert np.abs(whole.losses() - one.losses())[:51].max() <= 1e-5
    killed = Stage(place, f"{name}-killed", **CHANGES, **LAYOUTS[name])
    rank, a_step, where = ACCUMULATES[name]
    run_until_killed(killed, rank, 52 * a_step + 2, where)  # within step 53
    assert [path.name for path in killed.checkpoints] == ["step-00000040", "step-00000050"]
    out = run_until_killed(killed, *WRITES[name])
    assert "goes on after step 50" in out
    (half,) = killed.store.glob("checkpoint/.*.partial/checkpoints/.step-*.tmp")
    assert half.name == ".step-00000060.tmp"
    assert killed.checkpoints[-1].name == "step-00000050"
    out, _ = killed.run()
    assert "goes on after step 50" in out
    assert read_manifest(killed.artifact).digest == read_manifest(whole.artifact).digest


def test_a_checkpoint_goes_on_in_any_layout(place: Path, one: Stage, tmp_path: Path) -> None:
    stage = Stage(place, "half", **CHANGES, parallel={"tensor": 2})
    process = stage.start()
    stage.wait_for_checkpoint(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    taken = tmp_path / stage.checkpoints[-1].name
    shutil.copytree(stage.checkpoints[-1], taken)
    step = int(taken.name[5:])
    for name, changes in {"single": {}, **LAYOUTS}.items():
        other = Stage(place, f"to-{name}", **CHANGES, **changes, resume_from=str(taken))
        out, _ = other.run()
        assert f"goes on after step {step} of 100" in out
        rest = one.losses()[step + 1 :]
        assert len(other.losses()) == len(rest)
        assert np.abs(other.losses() - rest)[: 51 - step].max() <= 1e-5


def test_what_cannot_be_gone_on_from_is_bad_input(place: Path, one: Stage, tmp_path: Path) -> None:
    stage = Stage(place, "from-nothing", **CHANGES, resume_from=str(tmp_path / "step-00000005"))
    _, err = stage.run(code=2)
    assert "state.json: cannot be read" in err
    stage = Stage(place, "three", **CHANGES, parallel={"tensor": 3})
    _, err = stage.run(code=2)
    assert "parallel.tensor: is 3, which does not divide model.heads 4" in err


def test_half_precision_goes_on_with_its_loss_scale(place: Path, tmp_path: Path) -> None:
    changes = CHANGES | {"precision": "fp16", "steps": 30}
    whole = Stage(place, "fp16-whole", **changes)
    whole.run()
    stage = Stage(place, "fp16-stopped", **changes)
    process = stage.start()
    stage.wait_for_checkpoint(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    taken = tmp_path / stage.checkpoints[-1].name
    shutil.copytree(stage.checkpoints[-1], taken)
    out, _ = stage.run()
    assert "goes on after step" in out
    assert read_manifest(stage.artifact).digest == read_manifest(whole.artifact).digest
    assert {row["loss_scale"] for row in stage.rows()[1:]} == {"65536.0"}
    # As if there had been overflows before it was taken; and in another layout.
    state = json.loads((taken / "state.json").read_text())
    state["loss_scale"] = {"value": 128.0, "good_steps": 1000 - 5}
    (taken / "state.json").write_text(json.dumps(state))
    other = Stage(place, "fp16-scaled", **changes, parallel={"tensor": 2}, resume_from=str(taken))
    other.run()
    assert [row["loss_scale"] for row in other.rows()[:6]] == ["128.0"] * 5 + ["256.0"]
    rest = whole.losses()[-len(other.losses()) :]
    assert np.abs(other.losses() - rest).max() <= 0.05


def test_a_loss_scale_that_overflows_skips_and_ends_with_advice(place: Path) -> None:
    changes = {"precision": "fp16", "loss_scale": 1e30, "max_nonfinite_steps": 3}
    stage = Stage(place, "overflow", **CHANGES | changes)
    out, err = stage.run(code=1)
    assert "step 1 was skipped: its loss or gradient was not finite at loss scale 1e+30" in out
    assert "not finite in 3 steps in a row" in err
    assert "a smaller loss_scale than 1e+30, or precision fp32 instead of fp16" in err
    stage = Stage(place, "bf16", **CHANGES | {"precision": "bf16"})
    _, err = stage.run(code=2)
    assert "pretrain.precision: is 'bf16', in which MindSpore has no matrix product on CPU" in err
