"""The chain as Prefect flow runs: states by name, a task a step, pages, failures as they are."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from prefect import flow
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling, Completed, Paused, Running, Suspended
from prefect.testing.utilities import prefect_test_harness

from artifacts.approval import give_approval
from artifacts.errors import BadInput, StageFailed
from artifacts.store import list_artifacts
from flows import crashes
from flows.asking import Answer
from flows.crashes import report_crashes
from flows.lifecycle import STEPS
from flows.listening import ATTENDED, LISTENER, Listener
from flows.live import Live
from flows.prefect_run import run_as_flow
from flows.running import flow_of
from tests.fakes.chain import fake_work


@pytest.fixture(scope="module", autouse=True)
def _server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("home")))
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
    whole = Artifact.get("run").data
    press = Artifact.get("press")
    # Pages of one run lead to each other.
    link = rf"\[press\]\((/v2)?/artifacts/artifact/{press.id}\)"
    assert re.search(rf"\| {link} \| done \|", whole)
    assert re.search(rf"pressed {link}", page)

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
                    if paused.state_name == "Waiting for approval":
                        question = paused.state.state_details.run_input_keyset["description"]
                        try:
                            asked.append(client.read_flow_run_input(paused.id, question))
                        except PrefectHTTPStatusError:  # the form comes a moment after the pause
                            continue
                        asked.append(Artifact.get("judge").data)
                        said = "approve" if approved else "turn down"
                        given = {"answer": said, "who": "Ada", "why": "read it"}
                        client.resume_flow_run(paused.id, run_input={**given, "who": ""})
                        client.resume_flow_run(paused.id, run_input=given)
                        return
                time.sleep(0.1)

    asked = []
    person = threading.Thread(target=answer)
    person.start()
    state, tasks = run(fake_work(tmp_path, judge={"approval": True}))
    person.join()
    assert (state.name, "ship" in tasks) == (name, approved)
    question, page = asked
    assert "# The rules approve; your word is awaited" in question
    assert "8 letters: approved" in question
    assert "# Approved" not in question  # nobody has answered yet
    assert "The rules approve; a person's word is asked for as well." in page
    (record,) = (tmp_path / "approvals").iterdir()
    assert json.loads(record.read_text())["who"] == "Ada"


@pytest.mark.parametrize(("approved", "name"), [(True, "Completed"), (False, "Rejected")])
def test_a_paused_run_takes_an_answer_that_is_given_elsewhere(tmp_path, approved, name):
    def answer():
        with get_client(sync_client=True) as client:
            for _ in range(600):
                if any(r.state_name == "Waiting for approval" for r in client.read_flow_runs()):
                    made = {m.kind: m for _, m in list_artifacts(tmp_path)}
                    give_approval(tmp_path, made["decision"], approved, "read it", "Ada")
                    return
                time.sleep(0.1)

    person = threading.Thread(target=answer)
    person.start()
    state, tasks = run(fake_work(tmp_path, judge={"approval": True}))
    person.join()
    assert (state.name, "ship" in tasks) == (name, approved)


def test_of_two_answers_the_one_on_file_counts_and_the_run_says_so(tmp_path, monkeypatch):
    def ask(question, about, elsewhere):
        (decision,) = (m for _, m in list_artifacts(tmp_path) if m.digest == about)
        assert elsewhere() is None
        give_approval(tmp_path, decision, True, "read it", "Ada")
        assert elsewhere() == Answer(answer="approve", who="Ada", why="read it")
        return Answer(answer="turn down", who="Bob", why="too dry")

    said = []
    monkeypatch.setattr("flows.prefect_run.ask", ask)
    monkeypatch.setattr("flows.prefect_run._warn", lambda: said.append)
    state, tasks = run(fake_work(tmp_path, judge={"approval": True}))
    assert (state.name, "ship" in tasks) == ("Completed", True)
    (line,) = said
    assert line.startswith("Bob says turn down in the form; what counts is what Ada said before, ")
    assert line.endswith(": approve, read it")


def test_where_nobody_can_answer_the_run_ends_waiting(tmp_path):
    token = ATTENDED.set(False)
    try:
        state, tasks = run(fake_work(tmp_path, judge={"approval": True}))
    finally:
        ATTENDED.reset(token)
    assert (state.name, state.type) == ("Waiting for approval", "FAILED")
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
    # Asked for by the run: a server gives 200 lines at most, and has those of earlier tests. They
    # arrive when a batch is full or old.
    mine = LogFilter(flow_run_id={"any_": [state.state_details.flow_run_id]})
    shown = []
    until = time.monotonic() + 30
    with get_client(sync_client=True) as client:
        while not shown and time.monotonic() < until:
            time.sleep(0.2)
            messages = [log.message for log in client.read_logs(mine)]
            shown = [message for message in messages if message.startswith("line ")]
    assert shown[0] == "line 0"
    assert len(shown) < 50


def test_every_deployment_s_flow_takes_its_own_defaults_and_what_its_form_sends():
    from flows import flows

    entries = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())
    names = [each["entrypoint"].partition(":")[2] for each in entries["deployments"]]
    assert len(names) == 12
    for name in names:
        one = getattr(flows, name)
        assert one.validate_parameters({})["changes"].overrides() == []
        # The form begins with these; of a null it says that it is none of the choices.
        assert one.parameters.properties["changes"]["default"] == {}
        assert one.parameters.properties["config"]["anyOf"][0]["enum"]
        assert all(each.get("description") for each in one.parameters.properties.values())
    sent = flows.pretrain.validate_parameters({"changes": {"pretrain_steps": 5}})
    assert sent["changes"].overrides() == ["pretrain.steps=5"]


@pytest.mark.parametrize("target", [None, *(step.name for step in STEPS)])
def test_every_step_of_the_command_line_has_its_flow(target, monkeypatch):
    from flows import flows

    asked = []
    monkeypatch.setattr(flows, "_run", lambda target, *_: asked.append(target))
    name, more = flow_of(target)
    one = getattr(flows, name)
    one.fn(**one.validate_parameters({"config": "configs/tiny.yaml", "overrides": [], **more}))
    assert asked == [target]


@flow
def empty():
    """A flow whose runs these tests only pretend to run."""


def pretended(client, state):
    """A flow run in a state, whose process is this one's child or gone."""
    made = client.create_flow_run(empty)
    client.set_flow_run_state(made.id, state, force=True)
    return made.id


def test_a_run_whose_process_is_gone_has_crashed_and_a_living_one_has_not(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    program = (
        "import sys, time\nfrom flows.crashes import say_running\n"
        "for run in sys.argv[1:]: say_running(run)\nprint('runs', flush=True)\ntime.sleep(300)\n"
    )
    with get_client(sync_client=True) as client:
        pauses = (Paused(timeout_seconds=100), Suspended(timeout_seconds=100))
        states = (Running(), *pauses, Cancelling(), Completed())
        runs = [pretended(client, state) for state in states]

        def names():
            return [client.read_flow_run(run).state.name for run in runs]

        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, runs)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "runs\n"
        report_crashes(str(client.api_url))
        assert names() == ["Running", "Paused", "Suspended", "Cancelling", "Completed"]
        process.kill()
        process.wait()
        report_crashes("http://127.0.0.1:9/api")  # no server: asked another time
        report_crashes(str(client.api_url))
        # One that is suspended gets a new process when it is resumed.
        assert names() == ["Crashed", "Crashed", "Suspended", "Cancelled", "Completed"]
        assert "goes on from what is whole" in client.read_flow_run(runs[0]).state.message
    assert list((tmp_path / "running").iterdir()) == []


def test_two_that_look_for_crashes_at_once_do_not_trip_over_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    (tmp_path / "running").mkdir()
    gone = tmp_path / "running" / "run-1"
    monkeypatch.setattr(crashes, "sorted", lambda found: [gone, *found], raising=False)
    report_crashes("http://127.0.0.1:9/api")


def test_progress_is_shown_while_a_step_works_and_cannot_end_it(monkeypatch):
    lines = [
        f"pretrain  {i}/10 steps  loss {9 - i}.5  1,234 steps/s  0:0{i} left" for i in range(9)
    ]

    @flow(persist_result=False)
    def working():
        live = Live("pretrain", warnings.append, clock=iter(range(0, 1000, 5)).__next__)
        for line in ["MindSpore says something", *lines]:
            live.line(line)
        with monkeypatch.context() as patch:
            patch.setattr("flows.live.update_progress_artifact", broken)
            for _ in range(9):
                live.line("pretrain  9/10 steps  loss 0.1  0:01 left")
            seen.append(Artifact.get("pretrain-progress").data)
        live.ended()

    def broken(*arguments):
        raise ConnectionError("no server")

    warnings, seen = [], []
    working()
    bar = Artifact.get("pretrain-progress")
    assert bar.type == "progress"
    assert [*seen, bar.data] == [80.0, 90.0]  # the server is there again
    page = Artifact.get("pretrain-live").data
    assert "| steps | 9 of 10 |" in page
    assert "| loss | 0.1 |" in page
    assert "| time left | 0:01 |" in page
    assert "![loss](data:image/svg+xml;base64," in page
    assert warnings == ["progress cannot be shown for now: no server"]


def test_a_page_that_the_server_does_not_take_ends_nothing(tmp_path, monkeypatch):
    def broken(*arguments):
        raise ConnectionError("no server")

    monkeypatch.setattr("flows.prefect_run.put_page", broken)
    state, tasks = run(fake_work(tmp_path))
    assert state.name == "Completed"
    assert tasks["press"] == "Completed"


def test_a_release_and_a_rejection_are_events(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("flows.prefect_run.emit_event", lambda name, **about: told.append(name))
    run(fake_work(tmp_path))
    for _ in range(2):  # the second time it is no news
        run(fake_work(tmp_path, judge={"floor": 1000}))
    assert told == ["mindcycle.rejected"]


def test_the_automations_are_such_as_prefect_takes():
    text = (Path(__file__).parents[2] / "deploy" / "automations.yaml").read_text()
    found = [AutomationCore.model_validate(each) for each in yaml.safe_load(text)["automations"]]
    assert [list(each.trigger.expect) for each in found] == [
        ["mindcycle.released"],
        ["mindcycle.rejected"],
    ]
    assert not any(each.enabled for each in found)
