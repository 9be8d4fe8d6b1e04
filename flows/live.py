"""A step's progress in Prefect's user interface while it works: a bar, figures, the loss so far."""

import base64
import time
from collections.abc import Callable
from typing import cast
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from flows.progress_lines import Moment, parse_progress

EVERY_SECONDS = 2.0
"""Prefect's server has other things to do than to redraw a bar."""
AFTER_FAILURE_SECONDS = 30.0
"""A server that did not take a picture may be starting anew."""
MOST_POINTS = 300
"""Of the loss curve; of more, every other one is dropped."""


class Live:
    """Shows one step. A server that does not answer holds up nothing and ends nothing."""

    def __init__(
        self, step: str, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ):
        self._step, self._warn, self._clock = step, warn, clock
        self._next = 0.0
        self._bar: UUID | None = None
        self._page: UUID | None = None
        self._losses: list[tuple[int, float]] = []
        self._last: Moment | None = None
        self._failed = False

    def line(self, text: str) -> None:
        """Take a line that the stage printed; shows progress now and then."""
        moment = parse_progress(text)
        if moment is None:
            return
        self._last = moment
        if moment.loss is not None:
            self._losses.append((moment.done, moment.loss))
            if len(self._losses) > MOST_POINTS:
                self._losses = self._losses[::2]
        if self._clock() >= self._next:
            self._next = self._clock() + EVERY_SECONDS
            self._show(moment)

    def ended(self) -> None:
        """Show the last line, which may have come too soon after the one before."""
        if self._last is not None:
            self._show(self._last)

    def _show(self, moment: Moment) -> None:
        try:
            self._put(moment)
        except Exception as error:
            # A picture of the work must never end the work.
            self._next = self._clock() + AFTER_FAILURE_SECONDS
            if not self._failed:
                self._failed = True
                self._warn(f"progress cannot be shown for now: {error}")

    def _put(self, moment: Moment) -> None:
        share = 100 * moment.done / moment.total
        about = "  ".join([f"{moment.done}/{moment.total} {moment.unit}", *moment.values])
        page = live_page(self._step, moment, self._losses)
        if self._bar is None or self._page is None:
            bar = create_progress_artifact(share, f"{self._step}-progress", about)
            self._bar = cast(UUID, bar)
            self._page = put_page(f"{self._step}-live", page, "While it works")
            return
        update_progress_artifact(self._bar, share, about)
        with get_client(sync_client=True) as client:
            client.update_artifact(self._page, ArtifactUpdate(data=page))


def put_page(key: str, markdown: str, description: str) -> UUID:
    """A Markdown artifact of the run that is going on; its id."""
    return cast(UUID, create_markdown_artifact(markdown, key, description))


def live_page(step: str, moment: Moment, losses: list[tuple[int, float]]) -> str:
    """The figures of now as a table, and the loss so far as a picture."""
    rows = [(moment.unit, f"{moment.done} of {moment.total}")]
    for value in moment.values:
        name, _, rest = value.partition(" ")
        named = not name[:1].isdigit() and rest
        if value.endswith(" left"):
            rows.append(("time left", name))
        else:
            rows.append((name, rest) if named else ("speed", value))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    parts = [f"# {step}, while it works\n", f"| figure | now |\n|---|---|\n{table}\n"]
    if len(losses) > 1:
        data = base64.b64encode(curve(losses).encode()).decode()
        parts.append(f"![loss](data:image/svg+xml;base64,{data})\n")
    return "\n".join(parts)


def curve(points: list[tuple[int, float]], width: int = 640, height: int = 240) -> str:
    """Points (step, loss) as an SVG line with its two extremes named."""
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    low, high = min(losses), max(losses)
    left, top = 48, 12

    def x(step: int) -> float:
        return left + (width - left - 12) * (step - steps[0]) / max(steps[-1] - steps[0], 1)

    def y(loss: float) -> float:
        return top + (height - top - 28) * (high - loss) / ((high - low) or 1.0)

    line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
    text = 'font-family="sans-serif" font-size="11" fill="#5b6472"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f'<polyline points="{line}" fill="none" stroke="#2f6fde" stroke-width="1.5"/>'
        f'<text x="4" y="{y(high) + 4:.1f}" {text}>{high:.4g}</text>'
        f'<text x="4" y="{y(low) + 4:.1f}" {text}>{low:.4g}</text>'
        f'<text x="{left}" y="{height - 6}" {text}>step {steps[0]}</text>'
        f'<text x="{width - 90}" y="{height - 6}" {text}>step {steps[-1]}</text></svg>'
    )
