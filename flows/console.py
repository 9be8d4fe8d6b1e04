"""A run on the terminal: a line a step, what the stage says meanwhile, and a summary at the end."""

import shutil
import sys
import time

from artifacts.wording import counted
from flows.chain import Step
from flows.columns import columns, cut, nearby
from flows.listening import Listener
from flows.narrow import narrowed
from flows.pages import figure, scores_table
from flows.progress_lines import parse_progress
from flows.stage_process import StageOutcome

QUIET_SECONDS = 15.0
"""Without a terminal, a stage's lines are shown this far apart; the log has all of them."""
REPORTS = ("decision.md", "agreement.md")
"""What is shown at the end, up to its first section, from the artifacts that hold one."""


class ConsoleListener(Listener):
    """Prints the run; keeps its outcomes for the summary."""

    def __init__(self, verbose: bool = False) -> None:
        self.outcomes: dict[str, StageOutcome] = {}
        self._verbose = verbose
        self._live = sys.stdout.isatty() and not verbose
        self._width = shutil.get_terminal_size().columns - 1 if self._live else None
        self._begin = self._shown = time.monotonic()

    def started(self, step: Step) -> None:
        """Show that the step is looked at."""
        self._begin = self._shown = time.monotonic()
        self._transient(step, "...")

    def line(self, step: Step, text: str) -> None:
        """Show what the stage says: all of it, the newest, or a line now and then."""
        now = time.monotonic()
        if self._verbose:
            print(f"  {text}", flush=True)
        elif self._live:
            if now - self._shown >= 0.1:
                self._shown = now
                self._transient(step, said(step, text, now - self._begin))
        elif now - self._shown >= QUIET_SECONDS:
            self._shown = now
            print(f"  {step.name}: {said(step, text)}", flush=True)

    def ended(self, step: Step, outcome: StageOutcome) -> None:
        """Print the step's line."""
        self.outcomes[step.name] = outcome
        state = "done already" if outcome.skipped else duration(outcome.seconds)
        if outcome.rejected:
            state += ", rejected"
        headline = "  ".join(
            f"{key} {figure(value)}" for key, value in outcome.manifest.headline.items()
        )
        self._transient(step, "")
        text = f"{step.name:<16} {state:<12}  {headline}"
        print(cut(text, self._width), flush=True)

    def _transient(self, step: Step, text: str) -> None:
        if self._live:
            shown = cut(f"{step.name:<16} {text}", self._width) if text else ""
            print(f"\r\x1b[2K{shown}", end="", flush=True)


def said(step: Step, text: str, seconds: float | None = None) -> str:
    """A stage's line as it stands behind the step's name: progress with what matters first."""
    if moment := parse_progress(text):
        return "  ".join([f"{moment.done}/{moment.total} {moment.unit}", *moment.by_weight])
    text = text.removeprefix(f"{step.spec.name}: ")
    return text if seconds is None else f"{duration(seconds)}  {text}"


def duration(seconds: float) -> str:
    """Seconds as people read them: 0.4 s, 12 s, 3:05, 1:02:03."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_summary(outcomes: dict[str, StageOutcome], seconds: float) -> None:
    """Scores side by side, the decision, the proof of the export, and where everything lies."""
    pages = [scores_table({name: outcome.path for name, outcome in outcomes.items()})]
    for outcome in outcomes.values():
        for report in REPORTS:
            if (outcome.path / report).is_file():
                text = (outcome.path / report).read_text(encoding="utf-8")
                pages.append(text.partition("\n## ")[0])
    for page in filter(None, pages):
        print()
        print_markdown(page)
    rows = [
        (name, outcome.manifest.kind, outcome.manifest.digest[:16], nearby(outcome.path))
        for name, outcome in outcomes.items()
    ]
    print("\n" + columns([("step", "kind", "digest", "directory"), *rows]))
    skipped = sum(outcome.skipped for outcome in outcomes.values())
    print(
        f"\n{counted(len(outcomes), 'step')}, {skipped} of them done already, {duration(seconds)}."
    )


def print_markdown(text: str) -> None:
    """Markdown drawn on a terminal; as it is anywhere else."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        console.print(Markdown(narrowed(text, console.width)))
    else:
        print(text)
