"""`mindcycle gc`: what is needed stays, what a run uses stays, and the rest goes when asked."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from artifacts.channels import promote
from artifacts.claims import Claims, claims, no_new_claims
from artifacts.errors import BadInput, StageFailed
from artifacts.lineage import verify_chain
from artifacts.store import list_artifacts
from flows.chain import run_chain
from flows.cleaning import collect_garbage, expected_paths
from tests.command import ROOT, environment, mindcycle
from tests.fakes.chain import fake_work


def plain(call):
    return call.run(lambda line: None)


@pytest.fixture(autouse=True)
def _importable_fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def names(store: Path) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path, _ in list_artifacts(store)}


def name(outcome) -> str:
    return f"{outcome.path.parent.name}/{outcome.path.name}"


def test_nothing_is_removed_unless_asked_and_all_that_nothing_needs_if_so(tmp_path, capsys):
    run_chain(fake_work(tmp_path), plain)
    before = names(tmp_path)
    collect_garbage(tmp_path, [], None, remove=False)
    said = capsys.readouterr().out
    assert names(tmp_path) == before
    assert all(entry.partition("/")[2] in said for entry in before)
    assert "Nothing was removed" in said
    collect_garbage(tmp_path, [], None, remove=True)
    assert "removed: 3" in capsys.readouterr().out
    assert names(tmp_path) == set()
    assert not (tmp_path / ".trash").exists()
    # A run after it makes all of it again.
    assert not run_chain(fake_work(tmp_path), plain).outcomes["grow"].skipped


def test_a_channel_keeps_what_stands_what_a_rollback_brings_and_all_they_were_made_from(tmp_path):
    kept = []
    for times in (2, 3, 4):
        outcome = run_chain(fake_work(tmp_path, press={"times": times}), plain).outcomes["press"]
        promote(tmp_path, "candidate", outcome.path, "better")
        kept.append(outcome)
    collect_garbage(tmp_path, [], None, remove=True)
    left = names(tmp_path)
    assert name(kept[0]) not in left
    assert {name(kept[1]), name(kept[2])} <= left
    assert len(left) == 3  # and the one corpus
    for outcome in kept[1:]:
        assert verify_chain(outcome.path).problems == []


def test_what_is_named_stays_with_all_it_was_made_from(tmp_path):
    one = run_chain(fake_work(tmp_path, press={"times": 2}), plain).outcomes
    two = run_chain(fake_work(tmp_path, press={"times": 3}), plain).outcomes
    collect_garbage(tmp_path, [two["press"].manifest.digest[:12]], None, remove=True)
    assert names(tmp_path) == {name(two["grow"]), name(two["press"])}
    assert name(one["press"]) not in names(tmp_path)


def test_the_paths_a_config_expects_are_those_that_its_run_makes(tmp_path):
    work = fake_work(tmp_path)
    assert expected_paths(work) == expected_paths(work)
    assert len(expected_paths(work)) == 1  # what follows has no identity yet
    outcomes = run_chain(work, plain).outcomes.values()
    assert expected_paths(work) == [outcome.path for outcome in outcomes]


def test_files_that_a_training_renames_and_prunes_meanwhile_do_not_end_it(tmp_path, capsys):
    work, ended = tmp_path / "checkpoint" / ".abc.partial", threading.Event()
    work.mkdir(parents=True)

    def train():
        while not ended.is_set():
            step = work / "checkpoints" / "step"
            step.mkdir(parents=True)
            for number in range(20):
                (step / f"{number}.tmp").touch()
                (step / f"{number}.tmp").rename(step / f"{number}")
            shutil.rmtree(work / "checkpoints")

    training = threading.Thread(target=train)
    training.start()
    try:
        for _ in range(200):
            collect_garbage(tmp_path, [], None, remove=False)
    finally:
        ended.set()
        training.join()
    assert ".abc.partial (half done)" in capsys.readouterr().out


def test_half_done_work_stays_for_whoever_goes_on_with_it(tmp_path):
    work = fake_work(tmp_path)
    (final,) = expected_paths(work)
    mine = final.with_name(f".{final.name}.partial")
    for partial in (mine, mine.with_name(".0123456789abcdef.partial")):
        partial.mkdir(parents=True)
        (partial / "state").write_text("12345")
    with claims("a-run") as using:
        using.add(final)
        collect_garbage(tmp_path, [], None, remove=True)
    assert [path.name for path in tmp_path.glob("*/.*.partial")] == [mine.name]
    collect_garbage(tmp_path, [], None, remove=True)
    assert list(tmp_path.glob("*/.*.partial")) == []


def test_a_release_keeps_its_chain(tmp_path):
    from artifacts.manifest import Manifest, content_digest, read_manifest, write_manifest

    pressed = run_chain(fake_work(tmp_path), plain).outcomes["press"]
    source = read_manifest(pressed.path)
    entry = {"kind": source.kind, "identity": source.identity, "digest": source.digest}
    about = source.model_dump() | {"kind": "release", "identity": "ab" * 32, "files": []}
    release = Manifest.model_validate(
        about | {"inputs": {"bundle": entry}, "digest": content_digest("release", [])}
    )
    (tmp_path / "release" / ("ab" * 8)).mkdir(parents=True)
    write_manifest(tmp_path / "release" / ("ab" * 8), release)
    collect_garbage(tmp_path, [], None, remove=True)
    assert {entry.partition("/")[0] for entry in names(tmp_path)} == {
        "release",
        "checkpoint",
        "corpus",
    }


def test_a_budget_takes_what_was_used_longest_ago_and_no_more(tmp_path, capsys):
    for letters in ("a", "b", "c"):
        work = fake_work(tmp_path, grow={"text": letters * 1000}).needed("press")
        last = run_chain(work, plain).outcomes
        time.sleep(1.1)  # manifests know seconds
    collect_garbage(tmp_path, [], 6500e-9, remove=True)
    left = names(tmp_path)
    # Of the oldest chain the checkpoint goes first: a corpus without it is still whole.
    assert len(left) == 4 or len(left) == 5
    for path, _ in list_artifacts(tmp_path):
        assert verify_chain(path).problems == []
    collect_garbage(tmp_path, [], 3000e-9, remove=True)
    assert names(tmp_path) == {name(last["grow"]), name(last["press"])}
    with pytest.raises(StageFailed, match="more than the budget are needed"):
        collect_garbage(tmp_path, [last["press"].manifest.digest], 1000e-9, remove=True)


def test_a_manifest_that_cannot_be_read_stops_it(tmp_path):
    outcomes = run_chain(fake_work(tmp_path), plain).outcomes
    (outcomes["press"].path / "manifest.json").write_text("{")
    with pytest.raises(BadInput, match="nothing is removed"):
        collect_garbage(tmp_path, [], None, remove=True)
    assert (outcomes["grow"].path / "text.txt").exists()


def test_what_a_running_chain_has_found_stays_until_it_ends(tmp_path):
    """While its last step works, gc runs in a process of its own."""
    run_chain(fake_work(tmp_path).needed("press"), plain)
    swept = []

    def runner(call):
        if call.step.name == "judge":
            swept.append(mindcycle("gc", "--yes", "--store", tmp_path))
        return plain(call)

    result = run_chain(fake_work(tmp_path), runner)
    assert swept[0].returncode == 0, swept[0].stderr
    assert "kept for a run: 2" in swept[0].stdout
    assert verify_chain(result.outcomes["judge"].path).problems == []
    collect_garbage(tmp_path, [], None, remove=True)
    assert names(tmp_path) == set()
    assert list((tmp_path / ".claims").iterdir()) == []


def test_a_killed_process_leaves_no_claim(tmp_path):
    press = run_chain(fake_work(tmp_path), plain).outcomes["press"]
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom artifacts.claims import Claims\n"
        "claims = Claims('x')\nclaims.add(Path(sys.argv[1]))\nprint('has', flush=True)\n"
        "time.sleep(100)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(press.path)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "has\n"
    collect_garbage(tmp_path, [], None, remove=True)
    assert name(press) in names(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    collect_garbage(tmp_path, [], None, remove=True)
    assert names(tmp_path) == set()


def test_gc_without_pause_beside_chains_never_takes_anything_from_under_them(tmp_path):
    """Two chains that find each other's work, and a gc that never stops."""
    ended, errors, results, swept = threading.Event(), [], [], []

    def sweep():
        while not ended.is_set():
            collect_garbage(tmp_path, [], None, remove=True)
            swept.append(names(tmp_path))

    def go(times):
        try:
            for _ in range(2):
                results.append(run_chain(fake_work(tmp_path, press={"times": times}), plain))
        except Exception as error:
            errors.append(error)

    tmp_path.joinpath("corpus").mkdir()
    chains = [threading.Thread(target=go, args=(times,)) for times in (2, 2, 3)]
    sweeper = threading.Thread(target=sweep)
    for thread in (sweeper, *chains):
        thread.start()
    for thread in chains:
        thread.join()
    ended.set()
    sweeper.join()
    assert errors == []
    assert len(results) == 6
    assert len(swept) > 5


def test_claims_wait_while_gc_decides(tmp_path):
    (tmp_path / "corpus" / "x").mkdir(parents=True)
    made = threading.Event()
    claim = Claims("late")

    def late():
        claim.add(tmp_path / "corpus" / "x")
        made.set()

    with no_new_claims(tmp_path) as claimed:
        thread = threading.Thread(target=late)
        thread.start()
        assert not made.wait(0.3)
        assert claimed == set()
    thread.join()
    with no_new_claims(tmp_path) as claimed:
        assert claimed == {"corpus/x"}
    claim.release()


def test_bad_input(tmp_path):
    for arguments, words in [
        (["--store", tmp_path / "no"], "no is no directory"),
        (["--keep", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--keep", "12345"], "12345: is neither an artifact's directory"),
    ]:
        ran = mindcycle("gc", "--store", tmp_path, *arguments)
        assert ran.returncode == 2
        assert words in ran.stderr


def test_a_directory_that_stands_in_no_store_is_not_claimed(tmp_path):
    claim = Claims("x")
    claim.add(tmp_path / "somewhere" / "else")
    assert list(tmp_path.iterdir()) == []
