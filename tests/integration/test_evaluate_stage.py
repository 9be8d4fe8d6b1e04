"""The evaluation as a process of its own, on tiny models: MindSpore, an adapter, onnxruntime."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from artifacts.eval_report import read_items, read_report
from artifacts.lineage import verify_chain
from artifacts.manifest import read_manifest
from tests.evaluation import Row, row, rows, write_mmlu, write_tokenizer
from tests.tiny_models import as_artifact, random_weights, tiny, write_hf

LETTERS = "CABDBACDACBD"


def varied(letters: str) -> list[Row]:
    """Questions whose options differ, so that a model without knowledge chooses this and that."""
    return [
        row(f"Number {i * 37} of {letter * i}?", letter, [f"{i * k * 7 + k}" for k in (3, 1, 4, 2)])
        for i, letter in enumerate(letters, 1)
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a model, and MMLU in files."""
    path = tmp_path_factory.mktemp("evaluate")

    def fill(directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        size = write_tokenizer(path / "tokenizer")
        architecture = tiny(vocab_size=size, max_positions=256)
        write_hf(directory, architecture, random_weights(architecture, 7))
        write_tokenizer(directory)

    as_artifact(path / "store", "hf-model", fill)
    write_mmlu(path / "mmlu", "dev", {"anatomy": rows("AB"), "virology": rows("CD")})
    tables = {"anatomy": varied(LETTERS), "virology": varied(LETTERS[::-1])}
    write_mmlu(path / "mmlu", "test", tables)
    return path


def start(place: Path, name: str, store: str = "store", **changes: Any) -> subprocess.Popen[str]:
    task = {"suite": "mmlu", "data": "local", "path": str(place / "mmlu"), "num_fewshot": 1}
    config = {
        "tasks": [task, task | {"form": "continuation"}],
        "batch_size": 5,
    } | changes.pop("config", {})
    model = place / "store/hf-model" / ("1" * 16)
    request = {
        "stage": "evaluate",
        "config": config,
        "inputs": {"model": str(model)},
        "store": str(place / store),
    } | changes
    path = place / f"{name}.json"
    path.write_text(json.dumps(request))
    return subprocess.Popen(
        [sys.executable, "-m", "stages.evaluate", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def run(place: Path, name: str, **changes: Any) -> tuple[int, str, str]:
    process = start(place, name, **changes)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def report_in(store: Path) -> Path:
    (found,) = (store / "eval-report").glob("[!.]*")
    return found


@pytest.fixture(scope="module")
def undisturbed(place: Path) -> tuple[Path, str]:
    """The report of a whole evaluation, and what it printed."""
    code, out, err = run(place, "first")
    assert code == 0, err
    return report_in(place / "store"), out


def test_a_model_is_scored_and_the_report_is_part_of_the_chain(
    place: Path, undisturbed: tuple[Path, str]
) -> None:
    directory, out = undisturbed
    report, items = read_report(directory), read_items(directory)
    assert report.conditions.backend == "mindspore"
    assert report.model.digest == read_manifest(place / "store/hf-model" / ("1" * 16)).digest
    assert [len([i for i in items if i.task == name]) for name in report.tasks] == [24, 24]
    assert report.tasks["mmlu"].correct == sum(i.correct for i in items if i.task == "mmlu")
    assert sum(report.tasks["mmlu"].answer_counts.values()) == 24
    assert max(report.tasks["mmlu_continuation"].answer_counts.values()) < 24
    assert verify_chain(directory).problems == []
    manifest = read_manifest(directory)
    assert manifest.headline["mmlu"]["micro"] == report.tasks["mmlu"].micro
    assert len(manifest.sources) == 4
    names = {entry.path for entry in manifest.files}
    assert {"report.json", "items.jsonl", "report.md", "scores.png"} < names
    assert "lm_eval/samples_mmlu_anatomy.jsonl" in names
    assert not any("finished" in name for name in names)
    assert "48/48 questions" in out
    assert "done already" in run(place, "first")[1]


def test_killed_and_started_again_the_report_is_the_same(
    place: Path, undisturbed: tuple[Path, str]
) -> None:
    process = start(place, "killed", store="other")
    partial = place / "other/eval-report"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        kept = list(partial.glob(".*.partial/finished.jsonl"))
        if kept and kept[0].read_bytes().count(b"\n") >= 2:
            process.send_signal(signal.SIGKILL)
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    code, out, err = run(place, "again", store="other")
    assert code == 0, err
    assert "going on after" in out
    whole, resumed = undisturbed[0], report_in(place / "other")
    assert read_manifest(resumed).digest == read_manifest(whole).digest


def test_bad_data_ends_with_2_and_leaves_nothing(place: Path) -> None:
    folder = place / "broken/test"
    folder.mkdir(parents=True)
    (folder / "law_test.csv").write_text("q,1,2,3,4,A\nq,1,2,3,4,F\n")
    task = {"suite": "mmlu", "data": "local", "path": str(place / "broken")}
    code, _, err = run(place, "bad", store="bad", config={"tasks": [task]})
    assert code == 2
    assert "law_test.csv:2: the answer is 'F'" in err
    assert "Traceback" not in err
    world = {"suite": "mmlu", "data": "world"}
    code, _, err = run(place, "world", store="bad", config={"tasks": [world]})
    assert (code, "role corpus" in err) == (2, True)
    assert not list((place / "bad").glob("*/[!.]*"))
