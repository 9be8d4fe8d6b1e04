"""A bundle exported, scored and judged: an honest rounding is approved, a spoiled one ends with 3.

Nothing is trained: the right answers are what the model itself chooses in float32, so it answers
every question right, and each choice that rounding changes is a loss.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from artifacts.decision import RuleResult, read_decision
from artifacts.eval_report import read_items, read_report
from artifacts.hf_model import read_model
from artifacts.onnx_kinds import Precision
from artifacts.tokenizer_files import read_tokenizer
from stages.evaluate.config import EvaluateConfig
from stages.evaluate.run import run as evaluate
from stages.export.bundle import write_bundle
from stages.spec import Job
from tests.bundles import change_graph
from tests.evaluation import row, write_mmlu, write_tokenizer
from tests.tiny_models import as_artifact, random_weights, tiny, write_hf

QUESTIONS = 120
TASK = "mmlu_continuation"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a model and its report, and the questions that it answers right."""
    place = tmp_path_factory.mktemp("bundle_gate")

    def fill(directory: Path) -> None:
        architecture = tiny(vocab_size=write_tokenizer(place / "tokenizer"), max_positions=128)
        write_hf(directory, architecture, random_weights(architecture, 7))
        write_tokenizer(directory)

    as_artifact(place / "store", "hf-model", fill)
    write_mmlu(place / "mmlu", "dev", {"anatomy": [row("One?", "A")]})
    write_questions(place, "A" * QUESTIONS)
    in_fp32 = scores(place, exported(place, "a", "fp32", spoiled=False), "a")
    write_questions(place, "".join("ABCD"[item.choice] for item in read_items(in_fp32)))
    of_model = scores(place, place / "store/hf-model" / ("1" * 16), "b")
    assert read_report(of_model).tasks[TASK].correct == QUESTIONS
    return place


def write_questions(place: Path, letters: str) -> None:
    table = [
        row(f"Number {i * 37}?", letter, [f"{i * k * 7 + k}" for k in (3, 1, 4, 2)])
        for i, letter in enumerate(letters, 1)
    ]
    write_mmlu(place / "mmlu", "test", {"anatomy": table})


def exported(place: Path, identity: str, precision: Precision, spoiled: bool) -> Path:
    model = place / "store/hf-model" / ("1" * 16)

    def fill(directory: Path) -> None:
        write_bundle(directory, read_model(model), read_tokenizer(model), {}, precision=precision)
        if spoiled:
            change_graph(directory, misplace_scales)

    return as_artifact(place / "store", "onnx-bundle", fill, identity=identity * 64)


def misplace_scales(graph: onnx.GraphProto) -> None:
    """Every scale of a small weight stands at another row's place."""
    found = [
        each
        for each in graph.initializer
        if each.name.endswith(".scale") and each.data_location != onnx.TensorProto.EXTERNAL
    ]
    for tensor in found:
        value = np.ascontiguousarray(numpy_helper.to_array(tensor)[::-1])
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    assert found


def scores(place: Path, model: Path, identity: str) -> Path:
    """The eval-report of a model or bundle."""
    task = {"suite": "mmlu", "form": "continuation", "data": "local", "path": str(place / "mmlu")}
    config = EvaluateConfig.model_validate({"tasks": [task], "device": "CPU"})

    def fill(directory: Path) -> None:
        evaluate(Job(config, {"model": model}, directory, "f"))

    return as_artifact(place / "store", "eval-report", fill, identity=identity * 64)


def judged(place: Path, report: Path) -> tuple[int, RuleResult]:
    """The exit code of gate_bundle as a process, and what its rule has found."""
    store = place / "judged" / report.name
    request = {
        "stage": "gate_bundle",
        "config": {"rules": [{"rule": "no_loss", "task": TASK, "margin": 0.05}]},
        "inputs": {"candidate": str(report), "base": str(report.with_name("b" * 16))},
        "store": str(store),
    }
    path = place / "request.json"
    path.write_text(json.dumps(request))
    command = [sys.executable, "-m", "stages.gate", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr
    (decision,) = (store / "decision").glob("[!.]*")
    (rule,) = read_decision(decision).rules
    return done.returncode, rule


def test_an_honest_rounding_is_approved(place: Path) -> None:
    code, rule = judged(place, scores(place, exported(place, "2", "int8", spoiled=False), "2"))
    assert (code, rule.passed, rule.wins) == (0, True, 0)
    assert rule.candidate > 0.98


@pytest.mark.parametrize(("precision", "identity"), [("int8", "3"), ("int4", "4")])
def test_scales_at_the_wrong_rows_are_refused(
    place: Path, precision: Precision, identity: str
) -> None:
    bundle = exported(place, identity, precision, spoiled=True)
    code, rule = judged(place, scores(place, bundle, identity))
    assert (code, rule.passed) == (3, False)
    assert rule.candidate < 0.9
