"""The chain as Prefect flow runs: states by name, a task a step, pages, failures as they are."""

import json
import threading
import time
from pathlib import Path

import pytest
from prefect import flow
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness

from artifacts.errors import BadInput, StageFailed
from flows.listening import ATTENDED, LISTENER, Listener
from flows.prefect_run import run_as_flow
from tests.fakes.chain import fake_work


@pytest.fixture(scope="module", autouse=True)
def _server():
    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture(autouse=True)
def _importable_fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def run(work):
    """Run the work in a flow; returns its state and the names and states of its tasks."""

    @flow(persist_result=False)
    def fake():
        return run_as_flow(work)

    state = fake(return_state=True)
    with get_client(sync_client=True) as client:
        tasks = client.read_task_runs()
    ours = [t for t in tasks if t.flow_run_id == state.state_details.flow_run_id]
    ours.sort(key=lambda task: task.start_time)
    return state, {task.name: task.state_name for task in ours}


def test_completed_then_skipped_with_a_page_for_every_step(tmp_path):
    state, tasks = run(fake_work(tmp_path))
    assert (state.name, state.type) == ("Completed", "COMPLETED")
    assert tasks == {
        "grow": "Completed",
        "press": "Completed",
        "judge": "Approved",
        "ship": "Skipped",
    }
    page = Artifact.get("judge").data
    assert "| outcome | approved |" in page
    assert "8 letters: approved" in page
    assert "| press | done |" in Artifact.get("run").data

    state, tasks = run(fake_work(tmp_path))
    assert (state.name, state.type) == ("Skipped", "COMPLETED")
    assert set(tasks.values()) == {"Skipped"}


def test_a_rejection_is_a_state_of_its_own_and_ends_the_run(tmp_path):
    state, tasks = run(fake_work(tmp_path, judge={"floor": 1000}))
    assert (state.name, state.type) == ("Rejected", "FAILED")
    assert tasks == {"grow": "Completed", "press": "Completed", "judge": "Rejected"}


@pytest.mark.parametrize(("approved", "name"), [(True, "Completed"), (False, "Rejected")])
def test_a_paused_run_asks_a_person_and_does_what_they_say(tmp_path, approved, name):
    def answer():
        with get_client(sync_client=True) as client:
            for _ in range(600):
                for paused in client.read_flow_runs():
                    if paused.state_name == "Paused":
                        given = {"approved": approved, "who": "Ada", "why": "read it"}
                        client.resume_flow_run(paused.id, run_input={**given, "who": ""})
                        client.resume_flow_run(paused.id, run_input=given)
                        return
                time.sleep(0.1)

    person = threading.Thread(target=answer)
    person.start()
    state, tasks = run(fake_work(tmp_path, judge={"approval": True}))
    person.join()
    assert (state.name, "ship" in tasks) == (name, approved)
    (record,) = (tmp_path / "approvals").iterdir()
    assert json.loads(record.read_text())["who"] == "Ada"


def test_where_nobody_can_answer_the_run_ends_waiting(tmp_path):
    token = ATTENDED.set(False)
    try:
        state, tasks = run(fake_work(tmp_path, judge={"approval": True}))
    finally:
        ATTENDED.reset(token)
    assert (state.name, state.type) == ("Waiting", "FAILED")
    assert "mindcycle approve" in state.message
    assert "ship" not in tasks


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [("fail", StageFailed, "the roots are dry"), ("refuse", BadInput, "text: is no seed")],
)
def test_a_failing_step_fails_the_run_with_its_own_error(tmp_path, mode, error, words):
    state, tasks = run(fake_work(tmp_path, grow={"mode": mode}))
    assert (state.name, tasks) == ("Failed", {"grow": "Failed"})
    assert words in state.message
    with pytest.raises(error, match=words):
        state.result()


def test_whoever_listens_hears_every_line_and_prefect_some(tmp_path):
    heard = []

    class Ear(Listener):
        def line(self, step, text):
            heard.append(text)

    token = LISTENER.set(Ear())
    try:
        state, _ = run(fake_work(tmp_path, grow={"lines": 2000}))
    finally:
        LISTENER.reset(token)
    assert [line for line in heard if line.startswith("line ")] == [
        f"line {i}" for i in range(2000)
    ]
    with get_client(sync_client=True) as client:
        logs = client.read_logs()
    ours = [log.message for log in logs if log.flow_run_id == state.state_details.flow_run_id]
    shown = [message for message in ours if message.startswith("line ")]
    assert shown[0] == "line 0"
    assert len(shown) < 50
