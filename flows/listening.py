"""Whoever shows a run: told when a step starts, says a line, and ends."""

from contextvars import ContextVar

from flows.chain import Runner, Step, StepCall
from flows.stage_process import StageOutcome


class Listener:
    """Shows nothing; the base of those that do."""

    def started(self, step: Step) -> None:
        """A step begins: it looks whether its work is done already, and works if not."""

    def line(self, step: Step, text: str) -> None:
        """The step's stage printed a line."""

    def ended(self, step: Step, outcome: StageOutcome) -> None:
        """The step's artifact is whole."""


SILENT = Listener()
LISTENER: ContextVar[Listener] = ContextVar("listener", default=SILENT)
"""Who else listens to a Prefect flow: flow parameters can carry plain values only."""
ATTENDED: ContextVar[bool] = ContextVar("attended", default=True)
"""Whether a person can answer a paused run: not where its server ends with the command."""


def plain_runner(listener: Listener) -> Runner:
    """Runs a step right here and tells `listener`."""

    def run(call: StepCall) -> StageOutcome:
        listener.started(call.step)
        outcome = call.run(lambda text: listener.line(call.step, text))
        listener.ended(call.step, outcome)
        return outcome

    return run
