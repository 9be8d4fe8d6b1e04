"""The course of training: `logs/metrics.csv` as it goes, `logs/loss.png` at the end."""

import csv
from pathlib import Path
from types import TracebackType

import numpy as np

COLUMNS = ("step", "loss", "tokens_with_loss", "gradient_norm", "learning_rate")


class MetricsFile:
    """One CSV line a step, on disk at once."""

    def __init__(self, path: Path, history: np.ndarray):
        """Start the file with the steps already done: [steps, 4] as in `resume.State`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLUMNS)
        for index, row in enumerate(history):
            self.add(index + 1, row)

    def add(self, step: int, row: np.ndarray) -> None:
        """Write one step's line; steps count from 1."""
        loss, tokens, norm, rate = row.tolist()
        self._writer.writerow([step, f"{loss:.6f}", int(tokens), f"{norm:.6g}", f"{rate:.6g}"])
        self._file.flush()

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def draw_loss(path: Path, losses: np.ndarray) -> None:
    """The loss of every step, and its mean over the last steps as a line."""
    from matplotlib.figure import Figure  # half a second, which bad input need not wait for

    steps = np.arange(1, len(losses) + 1)
    window = max(1, len(losses) // 20)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    axes.plot(steps, losses, color="#9db8d2", linewidth=0.8, label="each step")
    axes.plot(steps[window - 1 :], smooth, color="#1f4e79", label=f"mean of {window}")
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("loss on answers, nats a token")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
