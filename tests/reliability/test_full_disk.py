"""A disk that fills up while a stage writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.disk import fill, limit_files
from tests.reliability.fault import Fault, tells
from tests.reliability.place import Place, Running, interrupt

pytestmark = pytest.mark.timeout(1800)
AREA = "Full disk"
SAW = "free some space, then the same command goes on from here"


def ends(running: Running) -> None:
    """Let the stage go on, into its end."""
    running.go_on()
    running.end()


@tells(
    AREA,
    "the disk is full when pretraining writes its second checkpoint",
    saw=SAW,
    lost="the steps since the last checkpoint",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_full_disk_in_a_checkpoint(fault: Fault, whole: Place, disk: tuple[Path, bool]) -> None:
    place = whole.up_to("pretrain", disk[0] / "store")

    def strike(running: Running) -> None:
        if disk[1]:
            fill(disk, 100_000)
        else:
            limit_files(running, 100_000)
        ends(running)

    running = interrupt(place, "pretrain", "checkpoints/step-00000010", strike)
    refused(fault, place, running, "pretrain", disk[1])
    # What is half takes no room.
    assert not list(place.work("pretrain").glob("checkpoints/.*"))
    (disk[0] / "ballast").unlink(missing_ok=True)
    goes_on(fault, place, whole, "pretrain")


@tells(
    AREA,
    "there is no room for the ONNX weights",
    saw=SAW,
    lost="what this step had computed",
    went_on="export: wrote",
)
def test_full_disk_in_the_onnx_data(fault: Fault, whole: Place, disk: tuple[Path, bool]) -> None:
    place = whole.up_to("export", disk[0] / "store")
    if disk[1]:
        fill(disk, 64_000)
        running = place.start("export")
        running.end()
    else:

        def strike(running: Running) -> None:
            limit_files(running, 64_000)
            ends(running)

        running = interrupt(place, "export", ".", strike)
    refused(fault, place, running, "export", disk[1])
    assert (place.work("export") / "model.onnx_data").stat().st_size < 80_000
    (disk[0] / "ballast").unlink(missing_ok=True)
    goes_on(fault, place, whole, "export")


@tells(
    AREA,
    "a quota or `ulimit -f` is used up when fine-tuning saves its state",
    saw=SAW,
    lost="the steps since the last saved state",
    went_on="finetune: going on after step 5",
)
def test_a_file_may_not_grow(fault: Fault, whole: Place, before: Callable[[str], Place]) -> None:
    place = before("finetune")

    def strike(running: Running) -> None:
        limit_files(running, 4_000)
        ends(running)

    running = interrupt(place, "finetune", "state.safetensors", strike)
    refused(fault, place, running, "finetune", mounted=False)
    goes_on(fault, place, whole, "finetune")


def refused(fault: Fault, place: Place, running: Running, step: str, mounted: bool) -> None:
    """It ended with a sentence that says what is full and where; nothing half has a final name."""
    said = running.said()
    assert running.process.returncode == 1, said
    assert fault.saw in said
    assert ("No space left on device" if mounted else "File too large") in said
    assert f"{step}: {place.work(step)}" in said
    assert "Traceback" not in said
    assert running.alive() == []
    assert not place.artifact(step).exists()
    place.nothing_half_is_taken_for_whole()


def goes_on(fault: Fault, place: Place, whole: Place, step: str) -> None:
    """With room again, the same command ends as if nothing had been."""
    assert fault.went_on in place.run(step)
    assert place.digest(step) == whole.digest(step)
    place.nothing_is_left_over(step)
