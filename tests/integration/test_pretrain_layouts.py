"""Pretraining in layouts as a user runs it: a rank killed, gone on with, in another layout."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.manifest import read_manifest
from tests.integration.test_pretrain import Stage, _children, place

assert place  # a fixture
CHANGES: dict[str, Any] = {
    "model": {
        "hidden_size": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "intermediate_size": 48,
        "init_std": 0.06,
    },
    "steps": 20,
    "checkpoint": {"every": 5, "keep": 2},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {"parallel": {"tensor": 2}},
    "pipeline": {"parallel": {"pipeline": 2}, "batch": {"per_device_size": 1}},
    "zero": {"parallel": {"data": 2, "zero": 1}},
}


@pytest.fixture(scope="module")
def one(place: Path) -> Stage:
    """One process, uninterrupted."""
    stage = Stage(place, "one", **CHANGES)
    stage.run()
    return stage


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_killed_rank_ends_the_run_which_goes_on_bitwise(
    place: Path,
    one: Stage,
    name: str,
) -> None:
    whole = Stage(place, f"{name}-whole", **CHANGES, **LAYOUTS[name])
    whole.run()
    assert np.abs(whole.losses() - one.losses()).max() <= 1e-5
    killed = Stage(place, f"{name}-killed", **CHANGES, **LAYOUTS[name])
    process = killed.start()
    killed.wait_for_checkpoint(process)
    family = _children(process.pid)
    os.kill(family[-1], signal.SIGKILL)  # the last rank
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 1 was killed by signal 9" in err
    assert killed.checkpoints
    out, _ = killed.run()
    assert "goes on after step" in out
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
        assert f"goes on after step {step} of 20" in out
        rest = one.losses()[step + 1 :]
        assert len(other.losses()) == len(rest)
        assert np.abs(other.losses() - rest).max() <= 1e-5


def test_what_cannot_be_gone_on_from_is_bad_input(place: Path, one: Stage, tmp_path: Path) -> None:
    stage = Stage(place, "from-nothing", **CHANGES, resume_from=str(tmp_path / "step-00000005"))
    _, err = stage.run(code=2)
    assert "state.json: cannot be read" in err
    stage = Stage(place, "three", **CHANGES, parallel={"tensor": 3})
    _, err = stage.run(code=2)
    assert "parallel.tensor: is 3, which does not divide model.heads 4" in err
