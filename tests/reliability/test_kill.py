"""kill -9 in each stage: the same command again ends with the same bytes."""

import csv
from collections.abc import Callable

import pytest
from _pytest.mark import ParameterSet

from tests.reliability.fault import Fault, tells, told
from tests.reliability.place import Place, interrupt

BY_SIGNAL = "was ended by signal 9 (the system does that when memory runs out)"
BEGUN = "what this step had computed; it takes no checkpoints"
Before = Callable[[str], Place]
pytestmark = pytest.mark.timeout(1800)


def stage(step: str, who: str, sight: str, injected: str, **words: str) -> ParameterSet:
    """A case: kill `who` when `sight` is seen in the work directory of `step`."""
    name = step.partition("-")[0]
    saw = f"{name} {BY_SIGNAL}" if who == "stage" else ""
    words = {"lost": BEGUN, "went_on": f"{name}: wrote"} | words
    fault = told("Killed (kill -9)", injected, saw=saw, **words)
    return pytest.param(fault, step, who, sight, id=injected)


KILLS = [
    stage("corpus", "all", "train-*.bin", "everything at once while the corpus is written"),
    stage(
        "pretrain",
        "all",
        "checkpoints/step-00000010",
        "everything at once in pretraining, between two checkpoints",
        lost="the steps since the last checkpoint",
        went_on="pretrain: goes on after step 10 of 40",
    ),
    stage(
        "pretrain",
        "stage",
        "checkpoints/.step-000000[234]0.tmp",
        "the process while it writes a checkpoint of pretraining",
        lost="the steps since the checkpoint before",
        went_on="pretrain: goes on after step",
    ),
    stage(
        "pretrain",
        "stage",
        "training/*",
        "the process while it turns the last checkpoint into the artifact",
        lost="nothing: the last checkpoint is there",
        went_on="pretrain: goes on after step 40 of 40",
    ),
    stage(
        "convert",
        "mindcycle",
        "model.safetensors",
        "`mindcycle` alone, while the converted model is written",
    ),
    stage(
        "evaluate-base",
        "all",
        "finished.jsonl+",
        "everything at once among the questions of an evaluation",
        lost="the batch at hand; answered ones are kept",
        went_on="evaluate: going on after",
    ),
    stage(
        "evaluate-base",
        "stage",
        "report.json",
        "the process while it writes the report of an evaluation",
        lost="nothing: the answers are there",
        went_on="evaluate: going on after",
    ),
    stage(
        "finetune",
        "all",
        "state.safetensors",
        "everything at once in fine-tuning",
        lost="the steps since the last saved state",
        went_on="finetune: going on after step 5",
    ),
    stage(
        "finetune",
        "stage",
        "adapter_model.safetensors",
        "the process while it writes the adapter",
        lost="nothing: the state after the last step is there",
        went_on="finetune: going on after step 20",
    ),
    stage(
        "merge",
        "stage",
        "model.safetensors",
        "the process while it writes the merged model",
    ),
    stage("gate", "stage", "decision.json", "the process while it writes the decision"),
    stage(
        "export",
        "all",
        "model.onnx_data",
        "everything at once after the ONNX weights",
    ),
    stage(
        "release",
        "stage",
        "manifest.json",
        "the process between an artifact's last byte and its final name (shown for the release)",
    ),
]


@pytest.mark.parametrize(("fault", "step", "who", "sight"), KILLS)
def test_killed(
    fault: Fault, step: str, who: str, sight: str, whole: Place, before: Before
) -> None:
    place = before(step)
    running = interrupt(place, step, sight, lambda running: running.kill(who))
    assert fault.saw in running.said()
    place.nothing_half_is_taken_for_whole()
    said = place.run(step)
    assert fault.went_on in said
    assert place.digest(step) == whole.digest(step)
    place.nothing_is_left_over(step)


@tells(
    "Killed (kill -9)",
    "everything at once in pretraining, again and again, each time before a new checkpoint",
    saw="",
    lost="the steps since the last checkpoint; the curve of the steps before it is whole",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_killed_twice_before_a_new_checkpoint(fault: Fault, whole: Place, before: Before) -> None:
    place = before("pretrain")
    # The events of TensorBoard are written anew as soon as the run goes on.
    for sight in ("checkpoints/step-00000010", "logs/tensorboard/*"):
        interrupt(place, "pretrain", sight, lambda running: running.kill("all"))
    assert not list(place.work("pretrain").glob("checkpoints/step-00000020"))
    assert fault.went_on in place.run("pretrain")
    assert place.digest("pretrain") == whole.digest("pretrain")
    curves = []
    for one in (place, whole):
        with (one.artifact("pretrain") / "logs" / "metrics.csv").open(newline="") as file:
            curves.append([(row["step"], row["loss"]) for row in csv.DictReader(file)])
    assert curves[0] == curves[1]
