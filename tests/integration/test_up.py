"""`mindcycle up` for real: deployments run, a cancelled run ends whole, a kill leaves nothing."""

import contextlib
import json
import os
import signal

import psutil
import pytest

from flows.prefect_server import free_port
from tests.command import ROOT, mindcycle, processes_about
from tests.up import start_up, wait_for

# About a minute of work for the corpus stage, of which none will be finished.
LONG = "corpus.sources.0.documents=5000000"


def addresses(process):
    """Where a process and everything below it listens: the system's own list of sockets."""
    top = psutil.Process(process.pid)
    found = set()
    for one in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            sockets = one.net_connections("inet")
            found |= {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    return found


@pytest.fixture
def home(tmp_path):
    """Prefect's home; whatever this process has started is ended in the end."""
    yield tmp_path / "home"
    for child in psutil.Process().children():
        child.kill()


@pytest.mark.timeout(900)
def test_a_schedule_is_off_at_first_and_as_it_was_left_after_a_restart(home):
    seen = []
    for _ in range(2):
        process, server = start_up(home)
        deployment = server.call("/deployments/name/lifecycle/default")
        schedules = {schedule["slug"]: schedule for schedule in deployment["schedules"]}
        assert len(schedules) == len(deployment["schedules"])
        seen.append({slug: schedule["active"] for slug, schedule in schedules.items()})
        path = f"/deployments/{deployment['id']}/schedules/{schedules['nightly']['id']}"
        server.call(path, {"active": True}, "PATCH")
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(30) == 0
        assert [child for child in family if child.is_running()] == []
    assert seen == [{"nightly": False, "weekly": False}, {"nightly": True, "weekly": False}]


@pytest.mark.timeout(900)
def test_up(home, tmp_path):
    process, server = start_up(home)
    store = str(tmp_path / "store")
    assert addresses(process) == {"127.0.0.1"}

    deployments = server.call("/deployments/filter", {})
    assert len(deployments) == 12
    assert {d["name"] for d in deployments} == {"default"}
    # Nothing of this machine's folders is in them: workers elsewhere can take their runs.
    assert str(ROOT) not in json.dumps(deployments)
    assert [s["active"] for d in deployments for s in d["schedules"]] == [False, False]

    second = mindcycle("up", "--port", free_port(), PREFECT_HOME=str(home))
    assert second.returncode == 2
    assert "already up" in second.stderr
    taken = server.url.split(":")[2].partition("/")[0]
    third = mindcycle("up", "--port", taken, PREFECT_HOME=str(tmp_path / "other"))
    assert third.returncode == 2
    assert third.stderr == (
        f"port {taken} on 127.0.0.1: Address already in use; "
        "stop what listens there, or choose another with --port\n"
    )

    # A relative config: the worker was started in the clone.
    run = server.start("corpus/default", config="configs/tiny.yaml", store=store)
    assert server.wait(run, "Completed", "Failed", "Crashed") == "Completed"

    # A run from the command line goes to the same server, and finds the work done.
    ran = mindcycle(
        "stage", "corpus", "configs/tiny.yaml", "--store", store, PREFECT_HOME=str(home)
    )
    assert ran.returncode == 0, ran.stderr
    assert "1 of them done already" in ran.stdout
    names = [r["state"]["name"] for r in server.call("/flow_runs/filter", {})]
    assert sorted(names) == ["Completed", "Skipped"]

    run = server.start("corpus/default", config="configs/tiny.yaml", store=store, overrides=[LONG])
    wait_for(lambda: any("stages.corpus" in line for line in processes_about(store)), 180)
    server.call(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert server.wait(run, "Cancelled", "Completed", "Crashed", "Failed") == "Cancelled"
    wait_for(lambda: not processes_about(store), 10)

    server.start("corpus/default", config="configs/tiny.yaml", store=store, overrides=[LONG])
    wait_for(lambda: any("stages.corpus" in line for line in processes_about(store)), 180)
    family = psutil.Process(process.pid).children(recursive=True)
    # Two supervisors with server and worker, the flow run and its supervisor at least.
    assert len(family) >= 6
    os.kill(process.pid, signal.SIGKILL)
    _, left = psutil.wait_procs(family, timeout=40)
    assert left == []
