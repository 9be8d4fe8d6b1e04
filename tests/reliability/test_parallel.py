"""One of several training processes is killed."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.reliability.fault import Fault, tells
from tests.reliability.place import Place, Running, interrupt

pytestmark = pytest.mark.timeout(1800)
TWO = ("--set", "pretrain.parallel.data=2")
CHECKPOINT = "checkpoints/step-00000010"


def rank(running: Running, number: int) -> psutil.Process:
    """One of the ranks of a running stage."""
    (found,) = (one for one in running.stages() if one.environ().get("MS_NODE_ID") == str(number))
    return found


@pytest.fixture(scope="module")
def undisturbed(whole: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Two ranks that nobody disturbs."""
    place = whole.up_to("pretrain", tmp_path_factory.mktemp("parallel") / "store")
    place.run("pretrain", *TWO)
    (made,) = place.store.glob("checkpoint/[0-9a-f]*")
    return replace(place, where={**place.where, "pretrain": f"checkpoint/{made.name}"})


@tells(
    "Several processes",
    "kill -9 of rank 1 of 2 in pretraining",
    saw="parallel: rank 1 was killed by signal 9",
    lost="the steps since the last checkpoint",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_a_rank_is_killed(fault: Fault, undisturbed: Place, before: Callable[[str], Place]) -> None:
    a_rank_is_killed(fault, undisturbed, replace(before("pretrain"), where=undisturbed.where), {})


@tells(
    "Several processes",
    "kill -9 of rank 1 of 2 in pretraining, as a Prefect flow run",
    saw="parallel: rank 1 was killed by signal 9",
    lost="the steps since the last checkpoint",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_a_rank_is_killed_under_prefect(
    fault: Fault, undisturbed: Place, before: Callable[[str], Place], tmp_path: Path
) -> None:
    place = replace(before("pretrain"), where=undisturbed.where)
    changes = {"PREFECT_HOME": str(tmp_path / "prefect")}
    a_rank_is_killed(fault, undisturbed, place, changes, "--prefect")


def a_rank_is_killed(
    fault: Fault, undisturbed: Place, place: Place, changes: Mapping[str, str], *more: str
) -> None:
    """Kill one, see the run end by itself, and the same command go on."""

    def strike(running: Running) -> None:
        rank(running, 1).kill()
        running.go_on()
        running.end(seconds=60)
        running.all_gone(time.monotonic())

    running = interrupt(place, "pretrain", CHECKPOINT, strike, *TWO, *more, changes=changes)
    assert running.process.returncode == 1
    assert fault.saw in running.said()
    assert fault.went_on in place.run("pretrain", *TWO, *more, changes=changes)
    assert place.digest("pretrain") == undisturbed.digest("pretrain")
    place.nothing_is_left_over("pretrain")


@tells(
    "Several processes",
    "kill -9 of everything at once when rank 0 has just written the artifact's last file",
    saw="",
    went_on="pretrain: wrote",
)
def test_killed_between_the_ranks_end_and_the_launchers(
    fault: Fault, undisturbed: Place, before: Callable[[str], Place]
) -> None:
    place = replace(before("pretrain"), where=undisturbed.where)
    interrupt(place, "pretrain", "trainer_state.json", lambda running: running.kill("all"), *TWO)
    assert list(Path(place.work("pretrain")).glob(".ranks/*"))
    assert fault.went_on in place.run("pretrain", *TWO)
    assert place.digest("pretrain") == undisturbed.digest("pretrain")
    place.nothing_is_left_over("pretrain")
