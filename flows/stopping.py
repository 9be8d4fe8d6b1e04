"""Ctrl-C, SIGTERM and SIGHUP as one exception that cleans up on its way out."""

import signal
from types import FrameType


class Ended(BaseException):
    """The process was asked to end. Not an Exception, so that no handler mistakes it for one."""

    def __init__(self, signal_number: int):
        self.signal_number = signal_number
        super().__init__(signal_number)


def end_on_signals() -> None:
    """From now on the signals raise Ended in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)
