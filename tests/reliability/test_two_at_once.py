"""Two runs on one store at the same time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.manifest import read_manifest
from tests.reliability.fault import Fault, tells
from tests.reliability.place import STEPS, Place, Running, interrupt

pytestmark = pytest.mark.timeout(1800)
AREA = "Two runs at once on one store"
WAITING = "pretrain: another process is at this; waiting"


@tells(
    AREA,
    "the same config",
    saw=WAITING,
    went_on="pretrain: done already",
)
def test_the_same_config(fault: Fault, whole: Place, before: Callable[[str], Place]) -> None:
    place = before("pretrain")
    others: list[Running] = []

    def strike(first: Running) -> None:
        others.append(second := place.start("pretrain"))
        assert second.wait_for(lambda: fault.saw in second.said()), second.said()
        first.go_on()
        assert "pretrain: wrote" in first.end()
        assert fault.went_on in second.end()
        assert (first.process.returncode, second.process.returncode) == (0, 0)
        assert place.digest("pretrain") == whole.digest("pretrain")

    try:
        interrupt(place, "pretrain", "checkpoints/step-00000010", strike, ends=True)
    finally:
        for other in others:
            other.cleanup()
    place.nothing_is_left_over("pretrain")


@tells(
    AREA,
    "the same config, and the one that works is killed (kill -9) while the other waits",
    saw=WAITING,
    lost="the steps since the last checkpoint",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_the_one_at_work_is_killed(
    fault: Fault, whole: Place, before: Callable[[str], Place]
) -> None:
    place = before("pretrain")
    others: list[Running] = []

    def strike(first: Running) -> None:
        others.append(second := place.start("pretrain"))
        assert second.wait_for(lambda: fault.saw in second.said()), second.said()
        for one in first.stages():
            one.kill()
        assert "pretrain was ended by signal 9" in first.end()
        assert fault.went_on in second.end()
        assert second.process.returncode == 0
        assert place.digest("pretrain") == whole.digest("pretrain")

    try:
        interrupt(place, "pretrain", "checkpoints/step-00000010", strike, ends=True)
    finally:
        for other in others:
            other.cleanup()
    place.nothing_is_left_over("pretrain")


@tells(AREA, "different configs", saw="1 of them done already", went_on="")
def test_different_configs(
    fault: Fault, whole: Place, before: Callable[[str], Place], tmp_path: Path
) -> None:
    place, alone = before("pretrain"), whole.up_to("pretrain", tmp_path / "alone")
    other = ("--set", "pretrain.seed=7")
    both = [place.start("pretrain"), place.start("pretrain", *other)]
    for running in both:
        assert fault.saw in running.end()
        assert running.process.returncode == 0
    alone.run("pretrain", *other)
    (expected,) = (read_manifest(path).digest for path in alone.store.glob("checkpoint/[0-9a-f]*"))
    made = {read_manifest(path).digest for path in place.store.glob("checkpoint/[0-9a-f]*")}
    assert made == {whole.digest("pretrain"), expected}
    assert len(made) == 2
    place.nothing_half_is_taken_for_whole()


@tells(
    AREA,
    "the whole lifecycle twice, and once with another fine-tuning",
    saw="another process is at this; waiting",
)
def test_whole_lifecycles(fault: Fault, whole: Place, before: Callable[[str], Place]) -> None:
    place = before("convert")
    ends = [
        place.start(None),
        place.start(None),
        place.start(None, "--set", "finetune.lora.rank=3"),
    ]
    said = [running.end() for running in ends]
    assert [running.process.returncode for running in ends] == [0, 0, 0], said
    for step in STEPS:
        assert place.digest(step) == whole.digest(step)
        place.nothing_is_left_over(step)
    assert len(list(place.store.glob("release/[0-9a-f]*"))) == 2
    assert fault.saw in said[0] + said[1]
    place.nothing_half_is_taken_for_whole()
