"""The chain as a Prefect flow run: a task a step, states by name, pages in the user interface."""

import os
import time
from collections.abc import Callable
from uuid import UUID

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.states import Completed, Failed, State

from artifacts.approval import Approval, approval_of, give_approval
from artifacts.errors import BadInput
from artifacts.wording import counted
from flows.asking import WAITING, Answer, answer_of, ask
from flows.chain import Result, Runner, Step, StepCall, Work, run_chain
from flows.crashes import say_running
from flows.listening import ATTENDED, LISTENER, Listener
from flows.live import Live, put_page
from flows.pages import Links, run_page, step_page
from flows.prefect_server import interface_base
from flows.stage_process import StageOutcome

LINE_SECONDS = 1.0
"""A stage's lines go to Prefect this far apart at least; the log file has them all."""
LINE_CHARACTERS = 2000
RELEASED, REJECTED = "mindcycle.released", "mindcycle.rejected"
"""Names of the events that automations can wait for."""
QUESTION = "# The rules approve; your word is awaited\n"


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

    The state's name is Released, Rejected, Skipped (all was done already), Waiting for approval or
    Completed. Raises what `run_chain` raises.
    """
    say_running(str(flow_run.id))
    links = Links(interface_base(os.environ.get("PREFECT_API_URL", "")))
    result = run_chain(work, task_runner(LISTENER.get(), links), ask_in_prefect)
    _put("run", run_page(work.name, result, links), "The whole run")
    if result.rejected_by:
        outcome = result.outcomes[result.rejected_by]
        if not outcome.skipped:  # news; what an automation starts must not start it again
            _tell(REJECTED, work, outcome)
        message = f"{result.rejected_by} rejected: {outcome.path}"
        return Failed(name="Rejected", message=message)
    if result.waiting:
        path = result.outcomes[result.waiting].path
        return Failed(name=WAITING, message=f"mindcycle approve {path} --why ..., then run again")
    if all(outcome.skipped for outcome in result.outcomes.values()):
        return Completed(name="Skipped", message="Everything was done already.")
    if release := _new_release(result):
        _tell(RELEASED, work, release)
        return Completed(name="Released", message=str(release.path))
    return Completed(message=f"{counted(len(result.outcomes), 'step')}, {work.store}")


def _new_release(result: Result) -> StageOutcome | None:
    for outcome in result.outcomes.values():
        if outcome.manifest.kind == "release" and not outcome.skipped:
            return outcome
    return None


def _tell(event: str, work: Work, outcome: StageOutcome) -> None:
    manifest = outcome.manifest
    emit_event(
        event,
        resource={
            "prefect.resource.id": f"mindcycle.{manifest.kind}.{manifest.digest[:16]}",
            "prefect.resource.name": work.name,
        },
        related=[
            {
                "prefect.resource.id": f"prefect.flow-run.{flow_run.id}",
                "prefect.resource.role": "flow-run",
            }
        ],
        payload={
            "run": work.name,
            "kind": manifest.kind,
            "digest": manifest.digest,
            "directory": str(outcome.path.absolute()),
        },
    )


def ask_in_prefect(work: Work, outcome: StageOutcome) -> Approval | None:
    """Pause the flow run and ask in Prefect's user interface; None if none is there to be asked in.

    Without an answer the run ends after a week, and `mindcycle approve` is left. An answer that is
    given by that, or in another run's form, while this one waits, is taken: the first one counts.
    """
    if not ATTENDED.get():
        return None

    def elsewhere() -> Answer | None:
        given = approval_of(work.store, outcome.manifest)
        if given is None:
            return None
        return Answer(answer=answer_of(given.approved), who=given.who, why=given.why)

    page = (outcome.path / "decision.md").read_text(encoding="utf-8")
    # Its own heading is the rules' answer alone, which a person would take for the last word.
    question = QUESTION + page.removeprefix("# Approved\n")
    answer = ask(question, outcome.manifest.digest, elsewhere)
    if answer is None:
        return None
    given = _write_down(work, outcome, answer)
    if not given.approved and outcome.skipped:
        _tell(REJECTED, work, outcome)
    return given


def _write_down(work: Work, outcome: StageOutcome, answer: Answer) -> Approval:
    """The answer on file: this one, or the one that stood there first."""
    about = (work.store, outcome.manifest)
    try:
        return give_approval(*about, answer.approved, answer.why, answer.who)
    except BadInput:
        given = approval_of(*about)
        if given is None:
            raise
    if given.approved != answer.approved:
        _warn()(
            f"{answer.who} says {answer.answer} in the form; what counts is what {given.who} said "
            f"before, at {given.when}: {answer_of(given.approved)}, {given.why}"
        )
    return given


def task_runner(listener: Listener, links: Links) -> Runner:
    """Runs each step as a task of the flow run that is going on."""

    def run(call: StepCall) -> StageOutcome:
        outcomes: list[StageOutcome] = []
        listener.started(call.step)

        # A task of its own name a step; finished work is known by its manifest, not by Prefect.
        @task(name=call.step.name, task_run_name=call.step.name, cache_policy=NO_CACHE)
        def step_task() -> State[None]:
            log = LogListener()
            live = Live(call.step.name, _warn())

            def on_line(text: str) -> None:
                log.line(call.step, text)
                live.line(text)
                listener.line(call.step, text)

            outcome = call.run(on_line)
            live.ended()
            outcomes.append(outcome)
            if page := _show(call.step, outcome, links):
                links.add(call.step.name, outcome, page)
            return _task_state(outcome)

        state = step_task(return_state=True)
        if not outcomes:
            state.result()  # raises what the step raised
        listener.ended(call.step, outcomes[0])
        return outcomes[0]

    return run


def _show(step: Step, outcome: StageOutcome, links: Links) -> UUID | None:
    about = f"{outcome.manifest.kind} {outcome.manifest.digest[:16]}"
    return _put(step.name, step_page(step.name, outcome, links), about)


def _put(key: str, page: str, about: str) -> UUID | None:
    """A page of the run; None if the server does not take it, which must not end whole work."""
    try:
        return put_page(key, page, about)
    except Exception as error:
        _warn()(f"the page {key} could not be shown: {error}")
        return None


def _warn() -> Callable[[str], None]:
    logger = get_run_logger()
    return lambda text: logger.warning("%s", text)


def _task_state(outcome: StageOutcome) -> State[None]:
    if outcome.rejected:
        return Failed(name="Rejected", message=f"See {outcome.path}")
    if outcome.skipped:
        return Completed(name="Skipped", message=f"Done already: {outcome.path}")
    if outcome.manifest.kind == "decision":
        return Completed(name="Approved", message=str(outcome.path))
    return Completed(message=str(outcome.path))
