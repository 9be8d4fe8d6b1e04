"""The chain over real stage processes: order, skipping, rejection, failures, and going on."""

import json
import shutil
import threading
from pathlib import Path

import pytest

from artifacts.approval import give_approval
from artifacts.errors import BadInput, StageFailed
from artifacts.manifest import read_manifest
from flows.chain import Step, Work, check_sources, run_chain
from stages.spec import Input, StageConfig, StageSpec
from tests.fakes.chain import fake_work

LINES: list[str] = []


def plain(call):
    return call.run(LINES.append)


@pytest.fixture(autouse=True)
def _importable_fakes(monkeypatch):
    LINES.clear()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_runs_in_order_then_skips_all_and_reads_every_byte(tmp_path):
    work = fake_work(tmp_path / "store", grow={"text": "abc", "lines": 3})
    first = run_chain(work, plain)
    assert list(first.outcomes) == ["grow", "press", "judge", "ship"]
    # `ship` is the same work as `press`.
    assert [name for name, outcome in first.outcomes.items() if outcome.skipped] == ["ship"]
    assert first.rejected_by is None
    assert LINES[:3] == ["line 0", "line 1", "line 2"]
    log = first.outcomes["grow"].log
    assert log.read_text().startswith("line 0\nline 1\n")
    request = json.loads(log.with_suffix(".request.json").read_text())
    assert request["config"]["text"] == "abc"

    logs_before = sorted((tmp_path / "store" / "logs").rglob("*"))
    second = run_chain(work, plain)
    assert all(outcome.skipped for outcome in second.outcomes.values())
    assert [o.manifest for o in second.outcomes.values()] == [
        o.manifest for o in first.outcomes.values()
    ]
    assert sorted((tmp_path / "store" / "logs").rglob("*")) == logs_before

    victim = first.outcomes["press"].path / "pressed.txt"
    victim.write_text("abcabd")
    with pytest.raises(BadInput, match=r"pressed\.txt: has changed"):
        run_chain(work, plain)


def test_the_same_step_twice_is_the_same_artifact(tmp_path):
    result = run_chain(fake_work(tmp_path), plain)
    assert result.outcomes["ship"].path == result.outcomes["press"].path


def test_a_changed_config_runs_what_depends_on_it(tmp_path):
    run_chain(fake_work(tmp_path), plain)
    result = run_chain(fake_work(tmp_path, press={"times": 3}), plain)
    assert [name for name, o in result.outcomes.items() if o.skipped] == ["grow", "ship"]


def test_a_rejection_ends_the_chain_the_second_time_too(tmp_path):
    work = fake_work(tmp_path, judge={"floor": 1000})
    for skipped in (False, True):
        result = run_chain(work, plain)
        assert result.rejected_by == "judge"
        assert list(result.outcomes) == ["grow", "press", "judge"]
        assert result.outcomes["judge"].skipped is skipped


def test_what_a_person_must_approve_waits_and_goes_on_from_there(tmp_path):
    work = fake_work(tmp_path, judge={"approval": True})
    waiting = run_chain(work, plain)
    assert (waiting.waiting, waiting.rejected_by) == ("judge", None)
    assert list(waiting.outcomes) == ["grow", "press", "judge"]
    give_approval(tmp_path, waiting.outcomes["judge"].manifest, True, "read it", "Ada")
    done = run_chain(work, plain)
    assert done.waiting is None
    assert list(done.outcomes) == ["grow", "press", "judge", "ship"]
    assert done.outcomes["judge"].skipped


def test_a_given_decision_must_be_approved_as_well(tmp_path):
    work = fake_work(tmp_path, judge={"approval": True})
    decision = run_chain(work, plain).outcomes["judge"]
    release = Step(
        "release", StageSpec("r", "release", StageConfig, {"d": Input(("decision",))}, 1)
    )
    given = Work("w", [release.with_given({"d": decision.path})], {"r": StageConfig()}, tmp_path)
    with pytest.raises(BadInput, match="asks for a person's approval and has none"):
        check_sources(given)
    give_approval(tmp_path, decision.manifest, True, "read it", "Ada")
    check_sources(given)


def test_what_a_person_turns_down_is_rejected(tmp_path):
    work = fake_work(tmp_path, judge={"approval": True})

    def say_no(work, outcome):
        return give_approval(work.store, outcome.manifest, False, "not like this", "Ada")

    for ask in (say_no, lambda work, outcome: pytest.fail("is answered already")):
        result = run_chain(work, plain, ask)
        assert result.rejected_by == "judge"
        assert list(result.outcomes) == ["grow", "press", "judge"]


def test_up_to_a_step_runs_only_what_it_needs(tmp_path):
    work = fake_work(tmp_path).needed("ship")
    assert list(run_chain(work, plain).outcomes) == ["grow", "ship"]


def test_given_inputs_replace_the_steps_before(tmp_path):
    grown = run_chain(fake_work(tmp_path / "a").needed("grow"), plain).outcomes["grow"].path
    work = fake_work(tmp_path / "b").needed("press", {"corpus": grown})
    result = run_chain(work, plain)
    assert list(result.outcomes) == ["press"]
    (grown / "text.txt").write_text("worm")
    # Refused even where the work is done already: what came out did not come from these bytes.
    with pytest.raises(BadInput, match=r"text\.txt: has"):
        run_chain(work, plain)
    with pytest.raises(BadInput, match=r"inputs\.corpus|text\.txt: has"):
        run_chain(fake_work(tmp_path / "c").needed("press", {"corpus": grown}), plain)


def test_unknown_steps_and_roles_are_named(tmp_path):
    with pytest.raises(BadInput, match="fly: is no step, the steps are grow, press, judge, ship"):
        fake_work(tmp_path).needed("fly")
    with pytest.raises(BadInput, match="input seed: press takes no such input, only corpus"):
        fake_work(tmp_path).needed("press", {"seed": tmp_path})


def test_a_missing_source_stops_before_any_work(tmp_path):
    work = fake_work(tmp_path / "store", grow={"source": "nowhere.txt"})
    with pytest.raises(BadInput, match=r"grow: source: nowhere\.txt is missing"):
        run_chain(work, plain)
    assert not (tmp_path / "store").exists()


def test_a_given_artifact_that_is_none_stops_before_any_work(tmp_path):
    pressed = run_chain(fake_work(tmp_path / "a").needed("press"), plain).outcomes["press"].path
    wrong_kind = "is of kind checkpoint, needed is corpus"
    for path, words in [(tmp_path, "is no artifact"), (pressed, wrong_kind)]:
        work = fake_work(tmp_path / "b").needed("judge", {"raw": path})
        with pytest.raises(BadInput, match=f"judge: input raw: .*{words}"):
            run_chain(work, plain)
    assert not (tmp_path / "b").exists()


def test_a_failure_tells_the_last_lines_and_where_the_rest_is(tmp_path):
    work = fake_work(tmp_path, grow={"mode": "fail", "lines": 100})
    with pytest.raises(StageFailed) as caught:
        run_chain(work, plain)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("grow ended with exit code 1; its whole log is ")
    assert lines[-1] == "RuntimeError: the roots are dry"
    assert len(lines) == 41
    log = Path(lines[0].rpartition(" ")[2])
    assert "line 0\n" in log.read_text()


def test_a_refusal_in_the_stage_is_bad_input_with_all_its_sentences(tmp_path):
    with pytest.raises(BadInput) as caught:
        run_chain(fake_work(tmp_path, grow={"mode": "refuse", "lines": 2}), plain)
    assert caught.value.problems == [
        "text: is no seed; write one",
        "lines: are too few; write more",
    ]


def test_a_killed_stage_says_so_and_the_next_run_goes_on(tmp_path):
    with pytest.raises(StageFailed, match="grow was ended by signal 9"):
        run_chain(fake_work(tmp_path, grow={"mode": "kill"}), plain)
    assert list(tmp_path.glob("corpus/*/manifest.json")) == []
    # What a killed run leaves must not hinder the next.
    partial = next(tmp_path.glob("corpus/.*.partial"))
    (partial / "half").write_text("x")
    work = fake_work(tmp_path, grow={"mode": "work"})
    shutil.move(partial, partial.with_name("." + _identity(work)[:16] + ".partial"))
    result = run_chain(work, plain)
    assert [f.path for f in result.outcomes["grow"].manifest.files] == ["text.txt"]


def _identity(work):
    from stages.plan import plan
    from stages.spec import Request

    step = work.steps[0]
    config = work.configs[step.spec.name].model_dump(mode="json")
    return plan(step.spec, Request("grow", config, {}, str(work.store))).identity


def test_a_store_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"store: .*cannot be created"):
        run_chain(fake_work(tmp_path / "file" / "store"), plain)


def test_two_chains_at_once_make_one_artifact(tmp_path):
    results = []

    def go():
        results.append(run_chain(fake_work(tmp_path), lambda call: call.run(lambda line: None)))

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert len(list(tmp_path.glob("corpus/*/manifest.json"))) == 1
    assert read_manifest(results[0].outcomes["grow"].path) == results[1].outcomes["grow"].manifest
