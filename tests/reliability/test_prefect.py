"""The same as a Prefect flow run: its process is killed."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.fault import Fault, tells
from tests.reliability.place import Place, Running, interrupt

pytestmark = pytest.mark.timeout(1800)


def serves(running: Running) -> bool:
    """Whether a Prefect server of its own is up."""
    return any("uvicorn" in part for one in running.family() for part in one.cmdline())


@tells(
    "Prefect",
    "kill -9 of the process of the flow run, in pretraining",
    saw="",
    lost="nothing: the stage is told to stop and writes a checkpoint",
    went_on="pretrain: goes on after step",
)
def test_the_flow_is_killed(
    fault: Fault, whole: Place, before: Callable[[str], Place], tmp_path: Path
) -> None:
    place = before("pretrain")
    changes = {"PREFECT_HOME": str(tmp_path / "prefect")}
    servers: list[bool] = []

    def strike(running: Running) -> None:
        servers.append(serves(running))
        running.kill("mindcycle")

    interrupt(place, "pretrain", "checkpoints/step-00000010", strike, "--prefect", changes=changes)
    assert servers == [True]
    again = place.start("pretrain", "--prefect", changes=changes)
    try:
        assert again.wait_for(lambda: serves(again))
        assert fault.went_on in again.end()
        again.all_gone(time.monotonic())
    finally:
        again.cleanup()
    assert again.process.returncode == 0
    assert place.digest("pretrain") == whole.digest("pretrain")
    place.nothing_is_left_over("pretrain")
