"""The lifecycle from Python and notebooks: `from flows.notebook import run`.

    outcomes = run("configs/quickstart.yaml", to="pretrain", overrides=["pretrain.steps=100"])
    outcomes["pretrain"].manifest.headline

Stages run as processes of their own, as from the command line, so that nothing of MindSpore gets
into the kernel, and a kernel that is interrupted or restarted ends them whole.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.chain import Step, run_chain
from flows.console import ConsoleListener, duration
from flows.lifecycle import load_work
from flows.listening import Listener, plain_runner
from flows.progress_lines import parse_progress
from flows.stage_process import StageOutcome


def run(
    config: str | Path,
    to: str | None = None,
    overrides: Sequence[str] = (),
    inputs: Sequence[str] = (),
    store: str | Path | None = None,
) -> dict[str, StageOutcome]:
    """Run a config up to a step, or all of it, and show progress; step -> its artifact.

    Ends early at a rejection, which `outcomes["gate"].rejected` says. `overrides` and `inputs` are
    those of the command line. Raises BadInput before any work, and StageFailed.
    """
    where = None if store is None else Path(store)
    work = load_work(Path(config), overrides, where, to, inputs)
    listener = NotebookListener() if in_notebook() else ConsoleListener()
    return run_chain(work, plain_runner(listener)).outcomes


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel; does not import IPython where nobody has."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


class NotebookListener(Listener):
    """A line a step in the cell's output, redrawn while it works."""

    def __init__(self) -> None:
        self._display: Any = None

    def started(self, step: Step) -> None:
        """Begin a line."""
        from IPython.display import display

        self._display = display({"text/plain": f"{step.name} ..."}, raw=True, display_id=True)

    def line(self, step: Step, text: str) -> None:
        """Show progress; what else the stage says is in its log."""
        if parse_progress(text):
            self._show(f"{step.name}  {text}")

    def ended(self, step: Step, outcome: StageOutcome) -> None:
        """Show what came out."""
        state = "done already" if outcome.skipped else duration(outcome.seconds)
        self._show(f"{step.name}  {state}  {outcome.path}")

    def _show(self, text: str) -> None:
        self._display.update({"text/plain": text}, raw=True)
