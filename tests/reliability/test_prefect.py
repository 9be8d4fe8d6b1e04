"""The same as a Prefect flow run: its process is killed, or the server that it talks to."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from flows.prefect_server import answers, free_port
from tests.command import environment
from tests.reliability.fault import Fault, tells
from tests.reliability.place import Place, Running, interrupt
from tests.up import wait_for

pytestmark = pytest.mark.timeout(1800)
APP = "prefect.server.api.server:create_app"
CHECKPOINT = "checkpoints/step-00000010"


def servers(running: Running) -> list[psutil.Process]:
    """The Prefect server of its own, if it has started one."""
    found = []
    for one in running.family():
        with suppress(psutil.NoSuchProcess):
            if APP in (command := one.cmdline()) and "-S" not in command:
                found.append(one)
    return found


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
    served: list[bool] = []

    def strike(running: Running) -> None:
        served.append(bool(servers(running)))
        running.kill("mindcycle")

    interrupt(place, "pretrain", CHECKPOINT, strike, "--prefect", changes=changes)
    assert served == [True]
    again = place.start("pretrain", "--prefect", changes=changes)
    try:
        assert again.wait_for(lambda: servers(again))
        assert fault.went_on in again.end()
        again.all_gone(time.monotonic())
    finally:
        again.cleanup()
    assert again.process.returncode == 0
    assert place.digest("pretrain") == whole.digest("pretrain")
    place.nothing_is_left_over("pretrain")


@tells(
    "Prefect",
    "kill -9 of the server that `mindcycle` has started, in pretraining",
    saw="pretrain: wrote",
    lost="nothing: the server is started again, Prefect's clients wait for it",
)
def test_its_own_server_is_killed(
    fault: Fault, whole: Place, before: Callable[[str], Place], tmp_path: Path
) -> None:
    place, home = before("pretrain"), tmp_path / "prefect"

    def strike(running: Running) -> None:
        for part in servers(running):
            part.kill()
        running.go_on()
        assert fault.saw in running.end()
        running.all_gone(time.monotonic())

    changes = {"PREFECT_HOME": str(home)}
    run = interrupt(place, "pretrain", CHECKPOINT, strike, "--prefect", changes=changes, ends=True)
    assert run.process.returncode == 0
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        assert list(database.execute("select state_name from flow_run")) == [("Completed",)]
        pages = {key for (key,) in database.execute("select key from artifact")}
    assert {"corpus", "pretrain", "run"} <= pages
    assert place.digest("pretrain") == whole.digest("pretrain")
    place.nothing_is_left_over("pretrain")


@tells(
    "Prefect",
    "kill -9 of the server that PREFECT_API_URL names, in pretraining, and it stays away",
    saw="does not answer any more",
    lost="nothing: the step at work is finished first",
    went_on="2 of them done already",
)
def test_a_named_server_goes_away(
    fault: Fault, whole: Place, before: Callable[[str], Place], tmp_path: Path
) -> None:
    place, port = before("pretrain"), free_port()
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "uvicorn", "--factory", APP, "--port", str(port)]
    home = {"PREFECT_HOME": str(tmp_path / "prefect")}
    # By default Prefect's clients ask for minutes.
    changes = {**home, "PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "0"}
    with subprocess.Popen(command, env=environment(**home)) as server:
        try:
            wait_for(lambda: answers(url), 600)

            def strike(running: Running) -> None:
                server.kill()
                server.wait()
                running.go_on()
                assert fault.saw in running.end()
                running.all_gone(time.monotonic())

            run = interrupt(
                place, "pretrain", CHECKPOINT, strike, "--prefect", changes=changes, ends=True
            )
        finally:
            server.kill()
    assert run.process.returncode == 1
    assert "Traceback" not in run.said()
    assert fault.went_on in place.run("pretrain")
    assert place.digest("pretrain") == whole.digest("pretrain")
    place.nothing_is_left_over("pretrain")
