"""The chain as a Prefect flow run: a task a step, states by name, pages in the user interface."""

import time

from prefect import get_run_logger, pause_flow_run, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import FlowPauseTimeout
from prefect.input import RunInput
from prefect.states import Completed, Failed, State
from pydantic import Field

from artifacts.approval import Approval, give_approval
from flows.chain import Runner, Step, StepCall, Work, run_chain
from flows.listening import ATTENDED, LISTENER, Listener
from flows.pages import run_page, step_page
from flows.stage_process import StageOutcome

LINE_SECONDS = 1.0
"""A stage's lines go to Prefect this far apart at least; the log file has them all."""
LINE_CHARACTERS = 2000
WAIT_SECONDS = 7 * 24 * 3600
"""How long a paused run waits for a person's answer."""


class LogListener(Listener):
    """Writes to the run's log in Prefect, a line a second at most."""

    def __init__(self) -> None:
        self._logger = get_run_logger()
        self._next = 0.0

    def line(self, step: Step, text: str) -> None:
        """Pass on a line of the stage, if the last one is old enough."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            self._logger.info("%s", text[:LINE_CHARACTERS])


def run_as_flow(work: Work) -> State[None]:
    """Run the chain inside a flow run; returns the state the flow run shall end in.

    The state's name is Rejected, Skipped (all was done already) or Completed. Raises what
    `run_chain` raises.
    """
    result = run_chain(work, task_runner(LISTENER.get()), ask_in_prefect)
    create_markdown_artifact(run_page(work.name, result), key="run", description="The whole run")
    if result.rejected_by:
        outcome = result.outcomes[result.rejected_by]
        message = f"{result.rejected_by} rejected: {outcome.path}"
        return Failed(name="Rejected", message=message)
    if result.waiting:
        path = result.outcomes[result.waiting].path
        return Failed(name="Waiting", message=f"mindcycle approve {path} --why ..., then run again")
    if all(outcome.skipped for outcome in result.outcomes.values()):
        return Completed(name="Skipped", message="Everything was done already.")
    return Completed(message=f"{len(result.outcomes)} steps, {work.store}")


class Answer(RunInput):
    """What a person says to a decision."""

    approved: bool
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)


def ask_in_prefect(work: Work, outcome: StageOutcome) -> Approval | None:
    """Pause the flow run and ask in Prefect's user interface; None if none is there to be asked in.

    Without an answer in WAIT_SECONDS the run ends, and `mindcycle approve` is left.
    """
    if not ATTENDED.get():
        return None
    page = (outcome.path / "decision.md").read_text(encoding="utf-8")
    try:
        answer = pause_flow_run(
            wait_for_input=Answer.with_initial_data(description=page), timeout=WAIT_SECONDS
        )
    except FlowPauseTimeout:
        return None
    return give_approval(work.store, outcome.manifest, answer.approved, answer.why, answer.who)


def task_runner(listener: Listener) -> Runner:
    """Runs each step as a task of the flow run that is going on."""

    def run(call: StepCall) -> StageOutcome:
        outcomes: list[StageOutcome] = []
        listener.started(call.step)

        # A task of its own name a step; finished work is known by its manifest, not by Prefect.
        @task(name=call.step.name, task_run_name=call.step.name, cache_policy=NO_CACHE)
        def step_task() -> State[None]:
            log = LogListener()

            def on_line(text: str) -> None:
                log.line(call.step, text)
                listener.line(call.step, text)

            outcome = call.run(on_line)
            outcomes.append(outcome)
            create_markdown_artifact(
                step_page(call.step.name, outcome),
                key=call.step.name,
                description=f"{outcome.manifest.kind} {outcome.manifest.digest[:16]}",
            )
            return _task_state(outcome)

        state = step_task(return_state=True)
        if not outcomes:
            state.result()  # raises what the step raised
        listener.ended(call.step, outcomes[0])
        return outcomes[0]

    return run


def _task_state(outcome: StageOutcome) -> State[None]:
    if outcome.rejected:
        return Failed(name="Rejected", message=f"See {outcome.path}")
    if outcome.skipped:
        return Completed(name="Skipped", message=f"Done already: {outcome.path}")
    if outcome.manifest.kind == "decision":
        return Completed(name="Approved", message=str(outcome.path))
    return Completed(message=str(outcome.path))
