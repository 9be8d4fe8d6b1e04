"""The whole lifecycle on configs/tiny.yaml: run, skipped, interrupted, rejected, tampered with."""

import html
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from artifacts.claims import FOLDER, SWEEPING
from artifacts.manifest import read_manifest
from artifacts.store import list_artifacts
from flows.cleaning import expected_paths
from flows.lifecycle import load_work
from tests.command import (
    ROOT,
    environment,
    mindcycle,
    processes_about,
    start_mindcycle,
    without_prefect,
)

TINY = "configs/tiny.yaml"
STEPS = 13


def digests(store):
    """Step's kind and identity -> content digest, for everything in a store."""
    return {(m.kind, m.identity): m.digest for _, m in list_artifacts(store)}


def only(store, kind):
    """The one artifact of a kind."""
    (path,) = (path for path, manifest in list_artifacts(store) if manifest.kind == kind)
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A store in which the lifecycle has run to its end; Prefect could not have been imported."""
    folder = tmp_path_factory.mktemp("lifecycle")
    ran = mindcycle(
        "run",
        TINY,
        "--no-prefect",
        "--store",
        folder / "store",
        first_on_path=without_prefect(folder),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder / "store", ran.stdout


@pytest.fixture
def copy(done, tmp_path):
    """The finished store, for a test that damages it."""
    return Path(shutil.copytree(done[0], tmp_path / "store"))


def test_text_becomes_a_release(done):
    store, output = done
    kinds = [manifest.kind for _, manifest in list_artifacts(store)]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "corpus": 1,
        "checkpoint": 1,
        "hf-model": 2,
        "eval-report": 3,
        "adapter": 1,
        "decision": 2,
        "onnx-bundle": 1,
        "proof": 1,
        "release": 1,
    }
    assert "| world_mmlu_continuation | 8 | 25.0% |" in output
    assert "# Approved" in output
    assert "# ONNX against MindSpore" in output
    assert f"{STEPS} steps, 0 of them done already" in output


def test_run_again_everything_is_skipped_and_nothing_is_touched(done):
    store, _ = done

    def times():  # what a run says it uses comes and goes
        known = [path for path in store.rglob("*") if path.name not in (FOLDER, SWEEPING)]
        return {path: path.stat().st_mtime_ns for path in known}

    before = times()
    ran = mindcycle("run", TINY, "--no-prefect", "--store", store)
    assert ran.returncode == 0, ran.stderr
    assert f"{STEPS} of them done already" in ran.stdout
    assert times() == before


@pytest.mark.timeout(1200)
def test_interrupted_again_and_again_it_ends_with_the_same_bytes(done, tmp_path):
    store = tmp_path / "interrupted"

    def interrupt(word, number):
        run = start_mindcycle("run", TINY, "--no-prefect", "--verbose", "--store", store)
        for line in run.stdout:
            if word in line:
                break
        else:
            pytest.fail(f"never said {word!r}")
        begin = time.monotonic()
        run.send_signal(number)
        run.stdout.read()
        code = run.wait(20)
        while processes_about(str(store)) and time.monotonic() - begin < 12:
            time.sleep(0.1)
        assert processes_about(str(store)) == []
        return code

    assert interrupt("reading", signal.SIGINT) == 130
    assert interrupt("pretrain  1/12", signal.SIGTERM) == 143
    assert interrupt("evaluate  ", signal.SIGKILL) == -9
    assert interrupt("finetune  1/4", signal.SIGKILL) == -9
    assert interrupt("export: ", signal.SIGKILL) == -9
    ran = mindcycle("run", TINY, "--no-prefect", "--store", store)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert digests(store) == digests(done[0])


def test_a_bundle_that_misses_its_floor_is_not_released(copy):
    shutil.rmtree(copy / "release")
    rules = "gate_bundle.rules=[{rule: floor, task: world_mmlu_continuation, at_least: 0.99}]"
    changes = ("--set", "export.precision=int8", "--set", rules)
    ran = mindcycle("run", TINY, "--no-prefect", "--store", copy, *changes)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "Rejected by gate-bundle" in ran.stdout
    assert not (copy / "release").exists()


def test_an_impossible_floor_rejects_by_name_and_exports_nothing(copy, tmp_path):
    for kind in ("onnx-bundle", "release", "eval-report"):
        shutil.rmtree(copy / kind)
    home = tmp_path / "prefect"
    arguments = ("run", TINY, "--store", copy, "--set", "gate.rules.0.at_least=0.99")
    ran = mindcycle(*arguments, PREFECT_HOME=str(home))
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "Rejected by gate" in ran.stdout
    assert not (copy / "onnx-bundle").exists()
    assert not (copy / "release").exists()
    with sqlite3.connect(home / "prefect.db") as database:
        flows = database.execute("select state_name, state_type from flow_run").fetchall()
        tasks = dict(database.execute("select name, state_name from task_run").fetchall())
        pages = dict(database.execute("select key, data from artifact").fetchall())
    assert flows == [("Rejected", "FAILED")]
    assert tasks == {
        "corpus": "Skipped",
        "pretrain": "Skipped",
        "convert": "Skipped",
        "evaluate-base": "Completed",
        "finetune": "Skipped",
        "merge": "Skipped",
        "evaluate-tuned": "Completed",
        "gate": "Rejected",
    }
    assert "data:image/png;base64" in pages["pretrain"]
    assert "data:image/png;base64" in pages["evaluate-tuned"]
    assert "# Rejected" in json.loads(pages["gate"])
    assert "| world_mmlu_continuation | 8 | 25.0% |" in json.loads(pages["run"])
    # What is no text is a progress bar's number.
    assert max(len(page) for page in pages.values() if isinstance(page, str)) < 1_000_000
    # Nothing of Prefect's stays either: the server was this run's own.
    assert processes_about(str(home)) == []
    again = mindcycle(*arguments, "--no-prefect")
    assert again.returncode == 3
    assert "8 of them done already" in again.stdout


def test_the_report_of_a_release_holds_the_config_that_makes_it_again(done, tmp_path):
    store, _ = done
    page = tmp_path / "report.html"
    ran = mindcycle("report", only(store, "release"), "--to", page)
    assert ran.returncode == 0, ran.stderr
    text = page.read_text()
    assert "released</span>" in text
    assert text.count("data:image/png;base64,") >= 3  # loss, scores, decision
    again = tmp_path / "again.yaml"
    again.write_text(html.unescape(re.search(r"<pre>(name: .*?)</pre>", text, re.S)[1]))
    paths = expected_paths(load_work(again, store=store))
    assert [path.parent.name for path in paths][-1] == "release"
    assert paths[-1] == only(store, "release").absolute()


def test_gc_keeps_a_release_and_all_it_was_made_from(copy):
    before = digests(copy)
    ran = mindcycle("gc", "--yes", "--store", copy)
    assert ran.returncode == 0, ran.stderr
    assert digests(copy) == before
    shutil.rmtree(only(copy, "release"))
    kept = mindcycle("gc", "--yes", "--store", copy, "--keep", TINY)
    assert kept.returncode == 0, kept.stderr
    assert digests(copy) == {key: value for key, value in before.items() if key[0] != "release"}
    assert mindcycle("gc", "--yes", "--store", copy).returncode == 0
    assert digests(copy) == {}


def test_verify_goes_back_to_the_data_and_finds_a_changed_byte(copy):
    release = only(copy, "release")
    right = mindcycle("verify", release)
    assert right.returncode == 0, right.stdout
    assert f"{STEPS} artifacts checked, 0 problems" in right.stdout

    checkpoint = only(copy, "checkpoint")
    weights = checkpoint / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    wrong = mindcycle("verify", release)
    assert wrong.returncode == 1
    assert f"WRONG  {weights}: has changed" in wrong.stdout

    run = mindcycle("run", TINY, "--no-prefect", "--store", copy)
    assert run.returncode == 2
    assert f"{weights}: has changed" in run.stderr
    assert f"remove {checkpoint}" in run.stderr


def test_one_stage_on_a_given_artifact(done, tmp_path):
    bundle = only(done[0], "onnx-bundle")
    corpus = read_manifest(only(done[0], "corpus")).digest
    given = ("--input", f"model={bundle}", "--input", f"corpus={corpus[:12]}")
    ran = mindcycle("stage", "evaluate-bundle", TINY, "--no-prefect", "--store", done[0], *given)
    assert ran.returncode == 0, ran.stderr
    assert "1 step, 1 of them done already" in ran.stdout
    wrong = mindcycle("stage", "gate", TINY, "--no-prefect", "--store", done[0], *given)
    assert wrong.returncode == 2
    assert "gate takes no such input" in wrong.stderr


def test_a_stage_can_be_run_again_from_its_request(done):
    request = next((done[0] / "logs").rglob("convert.request.json"))
    again = subprocess.run(
        [sys.executable, "-m", "stages.convert", str(request)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert "done already" in again.stdout
