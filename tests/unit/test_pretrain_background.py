"""Checkpoints are written beside the steps, and a failure is not forgotten."""

import threading

import pytest

from stages.pretrain.background import Background
from tests.up import wait_for


def full() -> None:
    raise OSError(28, "No space left on device")


def test_work_goes_on_while_it_writes_and_one_write_waits_for_the_other() -> None:
    may_end, order = threading.Event(), []

    def slow() -> None:
        may_end.wait()
        order.append("first")

    with Background() as background:
        background.start(slow)
        background.check()
        assert order == []
        may_end.set()
        background.start(lambda: order.append("second"))
        assert order[0] == "first"
    assert order == ["first", "second"]


def test_what_went_wrong_is_raised_by_the_next_call() -> None:
    background = Background()
    background.start(full)
    with pytest.raises(OSError, match="No space left"):
        background.wait()
    background.wait()

    background.start(full)
    wait_for(lambda: background.ended, 10)
    with pytest.raises(OSError, match="No space left"):
        background.check()

    background.start(full)
    with pytest.raises(OSError, match="No space left"):
        background.start(print)

    with pytest.raises(OSError, match="No space left"), Background() as background:
        background.start(full)


def test_another_error_waits_for_the_write() -> None:
    written = []
    background = Background()
    background.start(lambda: written.append(1))
    background.__exit__(KeyError, KeyError(), None)
    assert written == [1]
