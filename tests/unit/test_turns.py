"""Trainings take turns on a machine; a killed one gives its turn up."""

import os
import subprocess
import sys
import tempfile
import time

import pytest

from artifacts.errors import BadInput
from stages.turns import turn
from tests.command import environment

HOLD = (
    "import sys, time\nfrom stages.turns import turn\n"
    "with turn(sys.argv[1]):\n    print('has it', flush=True)\n    time.sleep(float(sys.argv[2]))\n"
)


def hold(name, seconds, **changes):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, name, str(seconds)],
        env=environment(**changes),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_second_waits_says_so_and_goes_on_when_the_first_is_killed(tmp_path):
    place = {"TMPDIR": str(tmp_path)}
    first = hold("one", 100, XDG_RUNTIME_DIR=str(tmp_path / "a-session"), **place)
    assert first.stdout.readline() == "has it\n"
    second = hold("two", 0, **place)
    said = "two: another training has this machine's cores; waiting\n"
    assert second.stdout.readline() == said
    time.sleep(0.2)
    assert second.poll() is None
    first.kill()
    assert second.stdout.readline() == "has it\n"
    assert second.wait(20) == 0
    first.wait()


def test_as_many_at_once_as_the_environment_says(tmp_path):
    place = {"TMPDIR": str(tmp_path), "MINDCYCLE_TRAININGS": "2"}
    running = [hold(name, 100, **place) for name in ("one", "two")]
    assert [process.stdout.readline() for process in running] == ["has it\n"] * 2
    third = hold("three", 0, **place)
    assert "waiting" in third.stdout.readline()
    for process in (*running, third):
        process.kill()
        process.wait()


def test_only_trainings_take_turns():
    from flows.lifecycle import FINETUNE_FULL, STEPS

    assert {step.spec.name for step in STEPS if step.spec.trains} == {"pretrain", "finetune"}
    assert FINETUNE_FULL.trains


@pytest.mark.parametrize("text", ["0", "many", ""])
def test_a_number_that_is_none_is_refused(text, monkeypatch):
    monkeypatch.setenv("MINDCYCLE_TRAININGS", text)
    with pytest.raises(BadInput, match="MINDCYCLE_TRAININGS: is "), turn("x"):
        pass


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    (tmp_path / "mindcycle-12345").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(BadInput, match="belongs to somebody else"), turn("x"):
        pass
