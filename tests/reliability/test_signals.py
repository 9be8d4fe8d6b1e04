"""Ctrl-C and SIGTERM in each long stage: an end within 10 s, and the same bytes afterwards."""

import signal
from collections.abc import Callable

import pytest
from _pytest.mark import ParameterSet

from tests.reliability.fault import Fault, told
from tests.reliability.place import Place, interrupt

pytestmark = pytest.mark.timeout(1800)
ANEW = "what this step had computed; it takes no checkpoints"


def stage(step: str, first: str, second: str, lost: str, went_on: str) -> ParameterSet:
    """A case: Ctrl-C when `first` is seen in the work directory of `step`, SIGTERM at `second`."""
    fault = told(
        "Told to stop",
        f"Ctrl-C, and SIGTERM the next time, in {step}",
        saw="Stopped; the same command goes on from here.",
        lost=lost,
        went_on=went_on,
    )
    return pytest.param(fault, step, first, second, id=step)


LONG = [
    stage("corpus", "train-*.bin", "train-*.bin", ANEW, "corpus: wrote"),
    stage(
        "pretrain",
        "checkpoints/step-00000010",
        "checkpoints/step-00000020",
        "nothing: a checkpoint is written first",
        "pretrain: goes on after step",
    ),
    stage(
        "evaluate-base",
        "finished.jsonl+",
        "finished.jsonl+",
        "the batch at hand; answered ones are kept",
        "evaluate: going on after",
    ),
    stage(
        "finetune",
        "state.safetensors",
        "state.safetensors",
        "nothing: the state is saved first",
        "finetune: going on after step",
    ),
    stage("export", "model.onnx_data", "model.onnx_data", ANEW, "export: wrote"),
]


@pytest.mark.parametrize(("fault", "step", "first", "second"), LONG)
def test_told_to_stop(
    fault: Fault,
    step: str,
    first: str,
    second: str,
    whole: Place,
    before: Callable[[str], Place],
) -> None:
    place = before(step)
    for sight, number in ((first, signal.SIGINT), (second, signal.SIGTERM)):
        running = interrupt(place, step, sight, lambda running: running.signal(number))  # noqa: B023
        assert fault.saw in running.said()
        assert running.process.returncode == 128 + number
        place.nothing_half_is_taken_for_whole()
        if step == "pretrain":
            assert list(place.work(step).glob("checkpoints/step-*"))
    said = place.run(step)
    assert fault.went_on in said
    assert place.digest(step) == whole.digest(step)
    place.nothing_is_left_over(step)
