"""A clock that was set back, and a store that cannot be written."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import libfaketime
import pytest

from artifacts.manifest import read_manifest
from tests.command import mindcycle
from tests.reliability.fault import Fault, tells
from tests.reliability.place import STEPS, Place, interrupt

pytestmark = pytest.mark.timeout(1800)
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


@tells(
    "Clock",
    "set back by 400 days in the middle of pretraining",
    saw="convert: wrote",
    went_on="pretrain: goes on after step 10 of 40",
)
def test_the_clock_is_set_back(fault: Fault, whole: Place, before: Callable[[str], Place]) -> None:
    place = before("pretrain")
    interrupt(place, "pretrain", "checkpoints/step-00000010", lambda running: running.kill("all"))
    _, preload = libfaketime.get_reload_information()
    said = place.run("convert", changes={**preload, "FAKETIME": "-400d"})
    assert fault.went_on in said
    assert fault.saw in said
    for step in ("pretrain", "convert"):
        assert place.digest(step) == whole.digest(step)
        made, corpus = (read_manifest(place.artifact(name)) for name in (step, "corpus"))
        assert made.finished < corpus.started  # the clock was set back indeed
    # With the right clock again, what came "before" its inputs is right and is not made again.
    assert "3 of them done already" in place.run("convert")
    verified = mindcycle("verify", place.artifact("convert"))
    assert "3 artifacts checked, 0 problems" in verified.stdout
    assert (
        place.where["convert"].rpartition("/")[2] in mindcycle("ls", "--store", place.store).stdout
    )


@contextmanager
def read_only(folders: list[Path]) -> Iterator[Callable[[], None]]:
    """Nobody may write into the folders; gives what root's processes need to respect that."""
    modes = [(folder, folder.stat().st_mode) for folder in folders]
    libc = ctypes.CDLL(None, use_errno=True)

    def obey() -> None:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH) if os.geteuid() == 0 else ():
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)

    try:
        for folder in folders:
            folder.chmod(0o555)
        yield obey
    finally:
        for folder, mode in modes:
            folder.chmod(mode)


def folders_of(store: Path) -> list[Path]:
    return [store, *(path for path in store.rglob("*") if path.is_dir())]


def contents(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@tells(
    "Store that cannot be written",
    "a read-only store in which a step is still to be done",
    saw="cannot be written",
    went_on="pretrain: wrote",
)
def test_a_read_only_store(fault: Fault, whole: Place, before: Callable[[str], Place]) -> None:
    place = before("pretrain")
    held = contents(place.store)
    with read_only(folders_of(place.store)) as obey:
        said = place.run("pretrain", code=2, prepare=obey)
    assert said.splitlines()[-1] == f"store: {place.store} {fault.saw}"
    assert contents(place.store) == held
    assert fault.went_on in place.run("pretrain")
    assert place.digest("pretrain") == whole.digest("pretrain")


@tells(
    "Store that cannot be written",
    "a folder of the store that belongs to somebody else",
    saw="checkpoint: cannot be written: Permission denied",
)
def test_a_read_only_folder_of_the_store(fault: Fault, before: Callable[[str], Place]) -> None:
    place = before("pretrain")
    folder = place.artifact("pretrain").parent
    for lock in folder.iterdir():
        lock.unlink()
    with read_only([folder]) as obey:
        assert fault.saw in place.run("pretrain", code=2, prepare=obey)
    assert list(folder.iterdir()) == []


@tells(
    "Store that cannot be written",
    "a read-only store in which all is done: it can be used, shown and verified",
    saw=f"{len(STEPS)} of them done already",
)
def test_a_read_only_store_that_is_finished(fault: Fault, whole: Place) -> None:
    held = contents(whole.store)
    with read_only(folders_of(whole.store)) as obey:
        assert fault.saw in whole.run(None, prepare=obey)
    assert contents(whole.store) == held
