"""What a run did, step by step: CSV, TensorBoard events and a picture of the loss, under logs/."""

import csv
import math
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

SMOOTHING = 0.95
"""Weight of the past in the smoothed curve."""


@dataclass
class Row:
    """One optimiser step."""

    step: int
    loss: float
    """Mean over the step's tokens, nats."""
    learning_rate: float
    gradient_norm: float
    """Before clipping."""
    applied: int
    """1, or 0 for a step that was skipped because it was not finite."""
    tokens_per_second: float
    """Over all processes."""
    validation_loss: float | None = None
    """Nats per token, where it was measured. Step 0 is the untrained model."""
    tokens_per_second_a_device: float = 0.0
    mfu: float = 0.0
    """FLOP/s of the matrix products over the measured peak of all processes together."""
    data_seconds: float = 0.0
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    """See `timing.Times` for what is measured and how."""
    checkpoint_seconds: float = 0.0
    """What was written since the row before."""
    loss_scale: float = 1.0
    """What the gradients were multiplied by in half precision."""
    spike: int = 0
    """1 where the loss stands out above those before it."""


COLUMNS = tuple(field.name for field in fields(Row))
SHOWN = tuple(name for name in COLUMNS if name not in ("step", "validation_loss"))
"""In TensorBoard, as train/NAME; the rest is the step itself and validation/loss."""


class Recorder:
    """Writes rows as they come; a resumed run goes on after the rows it had."""

    def __init__(self, logs: Path, resumed_at: int | None):
        """Keep the rows up to step `resumed_at`; None is a run that begins."""
        self._logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self._csv_path = logs / "metrics.csv"
        # Cut, not written anew: a kill before the next flush would lose the rows of the past.
        self.rows, whole = ([], 0) if resumed_at is None else _read(self._csv_path, resumed_at)
        for old in (logs / "tensorboard").glob("events.*"):
            old.unlink()
        self._events = EventFileWriter(str(logs / "tensorboard"))
        self._file = self._csv_path.open("a", newline="", encoding="utf-8")
        self._file.truncate(whole)
        self._csv = csv.writer(self._file)
        if not whole:
            self._csv.writerow(COLUMNS)
        for row in self.rows:
            self._show(row)

    def add(self, row: Row) -> None:
        """Append one row."""
        self.rows.append(row)
        self._csv.writerow(["" if value is None else value for value in astuple(row)])
        self._show(row)

    def flush(self) -> None:
        """Put everything on disk; called before a checkpoint, whose rows must not be missing."""
        self._file.flush()
        self._events.flush()

    def close(self) -> None:
        """End the files and draw the curve."""
        self._file.close()
        self._events.close()
        if self.rows:
            draw(self.rows, self._logs / "loss.png")

    def _show(self, row: Row) -> None:
        values = {f"train/{name}": getattr(row, name) for name in SHOWN} if row.step else {}
        if row.validation_loss is not None:
            values["validation/loss"] = row.validation_loss
        summary = Summary(
            value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        self._events.add_event(Event(wall_time=time.time(), step=row.step, summary=summary))


def _read(path: Path, last: int) -> tuple[list[Row], int]:
    """The rows up to step `last`, and the file's bytes up to there.

    A line that a kill cut short ends the file.
    """
    rows: list[Row] = []
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    if not lines or lines[0].decode("utf-8", "replace").rstrip() != ",".join(COLUMNS):
        return rows, 0
    whole = len(lines[0])
    for line in lines[1:]:
        row = _row(line)
        if row is None or row.step > last:
            break
        rows.append(row)
        whole += len(line)
    return rows, whole


def _row(line: bytes) -> Row | None:
    try:
        entry = dict(zip(COLUMNS, line.decode().rstrip().split(","), strict=True))
        whole = line.endswith(b"\n")
        values = {f.name: _value(f.type, entry[f.name]) for f in fields(Row)}
        row = Row(**values)
    except ValueError:
        return None
    return row if whole else None


def _value(kind: Any, text: str) -> Any:
    if not text and kind == (float | None):
        return None
    return int(text) if kind is int else float(text)


def draw(rows: list[Row], path: Path) -> None:
    """The training loss (thin: every step, thick: smoothed), its spikes and the validation loss."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    trained = [row for row in rows if row.step > 0 and math.isfinite(row.loss)]
    steps = [row.step for row in trained]
    axes.plot(steps, [row.loss for row in trained], color="C0", alpha=0.25, linewidth=0.8)
    axes.plot(steps, _smooth([row.loss for row in trained]), color="C0", label="training")
    spikes = [(row.step, row.loss) for row in trained if row.spike]
    if spikes:
        axes.plot(*zip(*spikes, strict=True), "v", color="C3", label="spike", markersize=6)
    held_out = [(row.step, row.validation_loss) for row in rows if row.validation_loss is not None]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="C1", label="validation", markersize=3)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def _smooth(values: list[float]) -> list[float]:
    """Exponential mean, corrected for its start."""
    smoothed, mean, weight = [], 0.0, 0.0
    for value in values:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        smoothed.append(mean / weight)
    return smoothed
