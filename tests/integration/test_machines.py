"""Pretraining on two machines, which are network namespaces: as one process, and when one dies."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command import ROOT
from tests.integration.test_pretrain import Stage, place
from tests.machines import Machine, two_machines

assert place  # a fixture
pytestmark = pytest.mark.timeout(1800)
CHANGES: dict[str, Any] = {
    "model": {"layers": 2},
    "steps": 24,
    "checkpoint": {"every": 6, "keep": 2},
}
TIMEOUT = 120
"""Seconds; less would be too little for a graph to compile in where others use the cores."""
Both = tuple[Machine, Machine]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with two_machines(tmp_path_factory.mktemp("machines")) as both:
        yield both


@pytest.fixture(scope="module")
def one(place: Path) -> Stage:
    """One process, uninterrupted."""
    stage = Stage(place, "one", **CHANGES)
    stage.run()
    return stage


class OnTwo:
    """The same stage on both machines, into the store that they share."""

    def __init__(self, place: Path, name: str, machines: Both, parallel: dict[str, Any]):
        self.stages, self.processes = [], []
        for rank, machine in enumerate(machines):
            where = {"nodes": 2, "node_rank": rank, "master": f"{machines[0].address}:7077"}
            stage = Stage(
                place, name, **CHANGES, parallel={**parallel, **where, "timeout_seconds": TIMEOUT}
            )
            # One name is one store; what a machine is asked stands beside the other's.
            request = stage.request.rename(stage.request.with_suffix(f".{rank}.json"))
            process = subprocess.Popen(
                machine.inside(sys.executable, "-m", "stages.pretrain", str(request)),
                env=machine.environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT)])},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.stages.append(stage)
            self.processes.append(process)

    def wait_for_checkpoint(self) -> None:
        self.stages[0].wait_for_checkpoint(self.processes[0])

    def end(self) -> list[tuple[int, str]]:
        """Exit code and words of each; the second within the timeout of the first."""
        said = [process.communicate(timeout=900)[0] for process in self.processes]
        codes = [process.returncode for process in self.processes]
        return list(zip(codes, said, strict=True))


def test_a_machine_dies_the_other_says_so_and_both_go_on(
    machines: Both, place: Path, one: Stage
) -> None:
    run = OnTwo(place, "killed", machines, {"data": 2})
    run.wait_for_checkpoint()
    machines[1].die()
    (code, said), (killed, _) = run.end()
    assert killed == -9
    assert code == 1
    last = said.strip().splitlines()[-1]
    assert last.startswith(f"pretrain: parallel: machine 1 ({machines[1].address})")
    assert [machine.processes() for machine in machines] == [[], []]

    (code, said), (other, heard) = OnTwo(place, "killed", machines, {"data": 2}).end()
    assert (code, other) == (0, 0), said + heard
    assert "goes on after step" in said
    assert f"is there: {run.stages[0].artifact}" in heard
    assert np.abs(run.stages[0].losses() - one.losses()).max() <= 1e-5
    assert [machine.processes() for machine in machines] == [[], []]


def test_the_cable_is_pulled_both_end_and_one_goes_on_alone(
    machines: Both, place: Path, one: Stage
) -> None:
    run = OnTwo(place, "unplugged", machines, {"pipeline": 2})
    run.wait_for_checkpoint()
    machines[1].unplug()
    for rank, (code, said) in enumerate(run.end()):
        assert code == 1
        other = f"machine {1 - rank} ({machines[1 - rank].address}) is gone: Connection timed out"
        assert said.strip().splitlines()[-1] == f"pretrain: parallel: {other}"
    assert [machine.processes() for machine in machines] == [[], []]

    alone = Stage(
        place, "unplugged", **CHANGES, parallel={"pipeline": 2, "timeout_seconds": TIMEOUT}
    )
    out, _ = alone.run()
    assert "goes on after step" in out
    assert np.abs(alone.losses() - one.losses()).max() <= 1e-5
