"""Progress of long work: a line a second at most, with the time left."""

import sys
import time
from collections.abc import Callable


class Progress:
    """Prints `label  done/total unit  name value ...  rate unit/s  m:ss left` during work."""

    def __init__(
        self,
        label: str,
        total: int,
        unit: str,
        every_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.label, self.total = label, total
        self.unit = unit.removesuffix("s") if total == 1 else unit
        self._every, self._clock = every_seconds, clock
        self._begin = self._last = clock()
        self._first_done: int | None = None

    def update(self, done: int, **values: str) -> None:
        """Say that `done` of `total` units are finished. The first and last call always print."""
        now = self._clock()
        first = self._first_done is None
        if first:
            self._first_done, self._begin = done, now
        if not first and done < self.total and now - self._last < self._every:
            return
        self._last = now
        parts = [f"{self.label}  {done}/{self.total} {self.unit}"]
        parts += [f"{name} {value}" for name, value in values.items()]
        gained, seconds = done - (self._first_done or 0), now - self._begin
        if gained > 0 and seconds > 0:
            rate = gained / seconds
            parts.append(f"{rate:.3g} {self.unit}/s")
            parts.append(f"{_clock_text((self.total - done) / rate)} left")
        print("  ".join(parts), file=sys.stdout, flush=True)


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
