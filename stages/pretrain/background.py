"""One write at a time beside the training steps."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class Background:
    """What it writes goes on while steps are made; leaving it waits until that is whole.

    The write must hold values of its own: the next step changes those that are trained. What went
    wrong is raised by the next call.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[object] | None = None

    def start(self, write: Callable[[], object]) -> None:
        """Begin to write, after the one before is done."""
        self.wait()
        self._running = self._thread.submit(write)

    @property
    def ended(self) -> bool:
        """Whether nothing is being written."""
        return self._running is None or self._running.done()

    def check(self) -> None:
        """Raise what the write has raised, if it has ended."""
        if self.ended:
            self.wait()

    def wait(self) -> None:
        """Return when nothing is being written. Raises what the write has raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def __enter__(self) -> "Background":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        if error is None:
            self.wait()
