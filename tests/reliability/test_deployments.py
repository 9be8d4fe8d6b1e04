"""Faults in the middle of a deployment's run: its processes, the worker, the server, the disk."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from flows.crashes import FOLDER
from tests.command import environment
from tests.reliability.deployed import DeployedRun, Up
from tests.reliability.disk import fill, limit_files
from tests.reliability.fault import Fault, tells
from tests.reliability.place import RUN, STEPS, Place, Running, interrupt
from tests.up import wait_for

pytestmark = pytest.mark.timeout(1800)
AREA = "Deployments of `mindcycle up`"
CHECKPOINT = "checkpoints/step-00000010"


@pytest.fixture(scope="module")
def one_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One `mindcycle up` for all tests here."""
    running = Up(tmp_path_factory.mktemp("up"))
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def up(one_up: Up) -> Up:
    """It, started again where a test has failed that had brought it down."""
    if one_up.process.poll() is not None:
        one_up.start()
    return one_up


def is_told_to_stop(process: psutil.Process) -> bool:
    """Whether SIGTERM waits for a process that stands still."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (pending,) = re.findall(r"ShdPnd:\s*(\w+)", status)
    return bool(int(pending, 16) >> (signal.SIGTERM - 1) & 1)


def goes_on_into_its_end(run: DeployedRun) -> None:
    """Let the stage go on when it has been told to stop, so that it is not done before."""
    (stage,) = run.stages()
    wait_for(lambda: is_told_to_stop(stage), 60)
    run.go_on()


def struck(
    up: Up,
    place: Place,
    strike: Callable[[DeployedRun], object],
    deployment: str = "pretrain",
    ends: bool = False,
) -> DeployedRun:
    """A run that is struck in pretraining, behind its first checkpoint."""

    def strike_here(running: Running) -> None:
        assert isinstance(running, DeployedRun)
        strike(running)

    def start() -> Running:
        return DeployedRun(up, place, deployment)

    run = interrupt(place, "pretrain", CHECKPOINT, strike_here, ends=ends, start=start)
    assert isinstance(run, DeployedRun)
    return run


def goes_on(fault: Fault, up: Up, place: Place, whole: Place) -> None:
    """The deployment, run again, ends with the bytes of a run that nobody disturbed."""
    place.nothing_half_is_taken_for_whole()
    again = DeployedRun(up, place)
    assert again.ends().startswith("Completed")
    assert fault.went_on in again.said()
    assert place.digest("pretrain") == whole.digest("pretrain")
    place.nothing_is_left_over("pretrain")


@tells(
    AREA,
    "kill -9 of the process of a deployment's run, in pretraining",
    saw="Crashed: Process exited with status code: -9",
    lost="nothing: the stage is told to stop and writes a checkpoint",
    went_on="pretrain: goes on after step",
)
def test_the_flow_run_is_killed(
    fault: Fault, up: Up, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("pretrain")

    def strike(run: DeployedRun) -> None:
        run.flow().kill()
        goes_on_into_its_end(run)
        assert fault.saw in run.ends(seconds=30)
        run.all_gone(time.monotonic())

    struck(up, place, strike)
    goes_on(fault, up, place, whole)


@tells(
    AREA,
    "kill -9 of the stage's process in a deployment's run, in pretraining",
    saw="pretrain was ended by signal 9 (the system does that when memory runs out)",
    lost="the steps since the last checkpoint",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_the_stage_is_killed(
    fault: Fault, up: Up, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("pretrain")

    def strike(run: DeployedRun) -> None:
        for stage in run.stages():
            stage.kill()
        assert fault.saw in (state := run.ends(seconds=30))
        assert state.startswith("Failed")
        run.all_gone(time.monotonic())

    struck(up, place, strike)
    goes_on(fault, up, place, whole)


@tells(
    AREA,
    "kill -9 of the worker that took the run, in pretraining; then `mindcycle up` again",
    saw="a part ended with exit code 137; its log is",
    lost="the steps since the last checkpoint",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_the_worker_is_killed(
    fault: Fault, up: Up, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("pretrain")

    def strike(run: DeployedRun) -> None:
        up.part("worker start").kill()
        assert fault.saw in up.ended()
        run.all_gone(time.monotonic())

    run = struck(up, place, strike)
    up.start()
    assert run.ends(seconds=30).startswith("Crashed: The process of this run is gone.")
    goes_on(fault, up, place, whole)


@tells(
    AREA,
    "kill -9 of the server, in pretraining; then `mindcycle up` again",
    saw="a part ended with exit code 137; its log is",
    lost="nothing: the stage is told to stop and writes a checkpoint",
    went_on="pretrain: goes on after step",
)
def test_the_server_is_killed(
    fault: Fault, up: Up, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("pretrain")

    def strike(run: DeployedRun) -> None:
        up.part("server start").kill()
        goes_on_into_its_end(run)
        assert fault.saw in up.ended()
        run.all_gone(time.monotonic())

    run = struck(up, place, strike)
    up.start()
    assert run.ends(seconds=30).startswith("Crashed")
    goes_on(fault, up, place, whole)


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Nobody else can write to the database meanwhile."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=60)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@tells(
    AREA,
    "the server's database is locked for 20 s in pretraining, and another run is started meanwhile",
    saw="Service Unavailable",
    lost="nothing: the stage works on, Prefect's clients ask again until they are answered",
    went_on="pretrain: wrote",
)
def test_the_database_is_locked(
    fault: Fault, up: Up, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("pretrain")
    parameters = {"config": str(RUN), "store": str(place.store)}
    options = [f"--param={name}={json.dumps(value)}" for name, value in parameters.items()]
    command = [sys.executable, "-m", "prefect", "deployment", "run", "corpus/default", *options]
    home = {"PREFECT_HOME": str(up.home), "PREFECT_API_URL": up.server.url}

    def strike(run: DeployedRun) -> None:
        with locked(up.home / "prefect.db"):
            begin = time.monotonic()
            run.go_on()
            other = subprocess.Popen(
                command, env=environment(**home), stdout=subprocess.PIPE, text=True
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                up.server.start("corpus/default", **parameters)
            assert fault.saw in refused.value.read().decode()
            wait_for(place.artifact("pretrain").is_dir, 40)
            time.sleep(max(0.0, begin + 20 - time.monotonic()))
            assert other.poll() is None
        assert run.ends().startswith("Completed")
        said, _ = other.communicate(timeout=120)
        assert "Created flow run" in said
        pages = up.server.call("/artifacts/filter", {"artifacts": {"key": {"any_": ["pretrain"]}}})
        assert run.id in [page["flow_run_id"] for page in pages]

    run = struck(up, place, strike, ends=True)
    assert fault.went_on in run.said()
    assert place.digest("pretrain") == whole.digest("pretrain")
    place.nothing_is_left_over("pretrain")


@tells(
    AREA,
    "two runs of the whole lifecycle at once, with the same config",
    saw="another process is at this; waiting",
)
def test_two_runs_at_once(
    fault: Fault, up: Up, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("prove")
    both = [DeployedRun(up, place, "lifecycle") for _ in range(2)]
    ends = [run.ends() for run in both]
    assert sum(state.startswith("Released") for state in ends) >= 1, ends
    assert {state.partition(":")[0] for state in ends} <= {"Released", "Completed", "Skipped"}
    assert fault.saw in both[0].said()
    for step in STEPS:
        assert place.digest(step) == whole.digest(step)
        place.nothing_is_left_over(step)
    place.nothing_half_is_taken_for_whole()


@tells(
    AREA,
    "the disk is full when a deployment's run writes its second checkpoint",
    saw="free some space, then the same command goes on from here",
    lost="the steps since the last checkpoint",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_full_disk(fault: Fault, up: Up, whole: Place, disk: tuple[Path, bool]) -> None:
    place = whole.up_to("pretrain", disk[0] / "store")

    def strike(run: DeployedRun) -> None:
        if disk[1]:
            fill(disk, 100_000)
        else:
            limit_files(run, 100_000)
        run.go_on()
        state = run.ends()
        assert state.startswith("Failed")
        assert fault.saw in state
        run.all_gone(time.monotonic())

    struck(up, place, strike)
    (disk[0] / "ballast").unlink(missing_ok=True)
    goes_on(fault, up, place, whole)


@tells(
    AREA,
    "Suspend, pressed in Prefect's interface while pretraining is at work, and Resume later",
    saw="Suspended",
    lost="nothing: the step at work is finished, the next one is not begun",
    went_on="convert: wrote",
)
def test_a_run_is_suspended(
    fault: Fault, up: Up, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("pretrain")

    def strike(run: DeployedRun) -> None:
        # What the button sends.
        suspended = {"type": "PAUSED", "name": "Suspended"}
        details = {"pause_reschedule": True}
        path = f"/flow_runs/{run.id}"
        up.server.call(f"{path}/set_state", {"state": {**suspended, "state_details": details}})
        run.go_on()
        wait_for(run.ended, 60)
        wait_for(lambda: not (up.home / FOLDER / run.id).exists(), 60)  # `up` has seen it end
        assert run.state().startswith(fault.saw)
        assert place.digest("pretrain") == whole.digest("pretrain")
        assert not place.artifact("convert").exists()
        up.server.call(f"{path}/resume", {})
        assert run.ends().startswith("Completed")
        assert fault.went_on in run.said()

    struck(up, place, strike, "convert", ends=True)
    assert place.digest("convert") == whole.digest("convert")
    place.nothing_is_left_over("convert")
