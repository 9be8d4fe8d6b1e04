"""SIGTERM and Ctrl-C at a good moment: noted when they come, acted on between two steps."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from stages.process import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Notes a signal; `check` raises it. Use `watching()`."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.signal_number is not None

    def raise_it(self) -> None:
        """Raise Stopped with the noted signal."""
        assert self.signal_number is not None
        raise Stopped(self.signal_number)

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. A second signal does not wait."""
        if self.requested:
            raise Stopped(number)
        self.signal_number = number


@contextlib.contextmanager
def watching() -> Iterator[StopRequest]:
    """Note signals instead of being interrupted by them."""
    request = StopRequest()
    before = [signal.signal(number, request.note) for number in SIGNALS]
    try:
        yield request
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def dying_at_once() -> Iterator[None]:
    """Let signals end the process without Python: while a graph compiles, Python cannot act for
    up to minutes, and there is nothing to write down yet.
    """
    before = [signal.signal(number, signal.SIG_DFL) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
