"""A flow run waits for a person: paused under a name that says so, with a form to answer in.

`prefect.pause_flow_run` does the same, but its state can only be called Paused, which does not say
that anybody is asked anything.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Literal
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError
from prefect.input import RunInput, keyset_from_paused_state
from prefect.states import Paused, State
from prefect.utilities.engine import propose_state_sync
from pydantic import Field

from artifacts.errors import StageFailed

WAITING = "Waiting for approval"
WAIT_SECONDS = 7 * 24 * 3600
"""How long a paused run waits for a person's answer."""
LOOK_SECONDS = 3.0


Words = Literal["approve", "turn down"]


class Answer(RunInput):
    """What a person says to a decision."""

    answer: Words = Field(
        description="Whether what the rules have approved may be released."
    )  # no switch: one that nobody has touched would be a no
    who: str = Field(min_length=1, description="Your name.")
    why: str = Field(min_length=1, description="The reason, for the record.")

    @property
    def approved(self) -> bool:
        """Whether the answer is yes."""
        return self.answer == "approve"


def answer_of(approved: bool) -> Words:
    """A yes or no in the form's words."""
    return "approve" if approved else "turn down"


def ask(question: str, about: str, elsewhere: Callable[[], Answer | None]) -> Answer | None:
    """Pause this flow run until somebody answers; None if nobody does in WAIT_SECONDS.

    `question` is Markdown, shown over the form; `about` names what is asked, one pause for each.
    `elsewhere` looks for an answer that was given by other means, which ends the pause as well.
    """
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    run = context.flow_run.id
    form = Answer.with_initial_data(description=question)
    paused: State[None] = Paused(timeout_seconds=WAIT_SECONDS, reschedule=False, pause_key=about)
    keyset = keyset_from_paused_state(paused)
    paused.state_details.run_input_keyset = {str(key): value for key, value in keyset.items()}
    paused.name = WAITING
    with get_client(sync_client=True) as client:
        state = propose_state_sync(client, paused, flow_run_id=run)
        if not state.is_paused():
            raise StageFailed(f"the run could not be paused to ask a person: it is {state.name}")
        form.save(keyset, flow_run_id=run)
        if not _goes_on(client, run, paused.state_details.pause_timeout, elsewhere):
            return None
    answer = form.load(keyset, flow_run_id=run)
    assert isinstance(answer, Answer)
    return answer


def _goes_on(
    client: SyncPrefectClient,
    run: UUID,
    until: datetime | None,
    elsewhere: Callable[[], Answer | None],
) -> bool:
    while until is None or datetime.now(timezone.utc) < until:
        # A server that is away, started anew perhaps, is asked again: people take longer than that.
        with suppress(httpx.TransportError, PrefectHTTPStatusError):
            state = client.read_flow_run(run).state
            if state is not None and (state.is_running() or state.is_final()):
                return bool(state.is_running())
            if (given := elsewhere()) is not None:  # as if the form had been filled in with it
                client.resume_flow_run(run, run_input=given.model_dump())
        time.sleep(LOOK_SECONDS)
    return False
