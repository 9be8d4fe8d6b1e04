"""`mindcycle run` and `stage`: the same chain as a Prefect flow run, or without Prefect."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifacts.approval import approval_of
from artifacts.errors import REJECTED, StageFailed
from artifacts.store import SHORT
from artifacts.wording import counted
from flows.chain import Work, check_sources, run_chain
from flows.console import ConsoleListener, print_summary
from flows.crashes import report_crashes
from flows.lifecycle import load_work
from flows.listening import ATTENDED, LISTENER, Listener, plain_runner
from flows.stage_process import StageOutcome


def run_work(
    target: str | None,
    config: Path,
    overrides: Sequence[str],
    store: Path | None,
    inputs: Sequence[str],
    no_prefect: bool,
    verbose: bool,
) -> None:
    """Run the lifecycle, or one step with what it needs, and show it.

    Ends the process with exit code 3 if the gate rejects. Raises BadInput and StageFailed.
    """
    begin = time.monotonic()
    work = load_work(config, overrides, store, target, inputs)
    check_sources(work)  # here already: a config with a problem need not wait for Prefect
    listener = ConsoleListener(verbose)
    print(f"{work.name}: {counted(len(work.steps), 'step')} into {work.store}", flush=True)
    if no_prefect:
        run_chain(work, plain_runner(listener))
    else:
        parameters = {
            "config": str(config),
            "overrides": list(overrides),
            "store": None if store is None else str(store),
        }
        _run_flow(target, parameters, list(inputs), listener)
    print_summary(listener.outcomes, time.monotonic() - begin)
    for name, outcome in listener.outcomes.items():
        if outcome.rejected:
            print(f"\nRejected by {name}; what follows was not run. Reasons: {outcome.path}")
            raise SystemExit(REJECTED)
        if work.configs[outcome.manifest.stage].needs_approval():
            _require_approval(work, outcome)
    if "release" in listener.outcomes:
        digest = listener.outcomes["release"].manifest.digest[:SHORT]
        where = "" if work.store == Path("store") else f" --store {work.store}"
        print(
            f"\nReleased. Ask it:  mindcycle generate {digest} 'Question: ...'{where}"
            f"\nover HTTP:         mindcycle serve {digest}{where}"
        )


def _require_approval(work: Work, outcome: StageOutcome) -> None:
    """End the process with exit code 3 unless a person has approved."""
    given = approval_of(work.store, outcome.manifest)
    if given is None:
        print(
            "\nThe rules passed; a person has to approve as well. When one has said\n"
            f"  mindcycle approve {outcome.path} --why '...'\nthe same command goes on from here."
        )
    elif given.approved:
        return
    else:
        print(f"\nTurned down by {given.who} at {given.when}: {given.why}")
    raise SystemExit(REJECTED)


def flow_of(target: str | None) -> tuple[str, dict[str, str]]:
    """The flow in `flows/flows.py` that runs a step, None being all of them; and what it takes."""
    name = (target or "lifecycle").replace("-", "_")
    if name.startswith("evaluate_"):
        return "evaluate", {"model": name.removeprefix("evaluate_")}
    return name, {}


def _run_flow(
    target: str | None, parameters: dict[str, Any], inputs: list[str], listener: Listener
) -> None:
    """Run as a Prefect flow run. Raises what the chain raises; a rejection is no error.

    Raises StageFailed if the server went away for good.
    """
    from flows.prefect_server import begin_connection, keep_up, wait_until_up

    # The run shows itself on the terminal; Prefect's log lines go to its server.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    server = begin_connection()
    import httpx

    from flows import flows  # takes a second, in which the server starts
    from flows.asking import WAITING

    if server is not None:
        wait_until_up(server, os.environ["PREFECT_API_URL"])
        keep_up(server, os.environ["PREFECT_API_URL"])
    report_crashes(os.environ["PREFECT_API_URL"])
    flow_name, more = flow_of(target)
    if inputs:
        parameters["inputs"] = inputs
    LISTENER.set(listener)
    ATTENDED.set(server is None)
    try:
        state = getattr(flows, flow_name)(**parameters, **more, return_state=True)
    except httpx.HTTPError as error:
        raise StageFailed(
            f"Prefect's server at {os.environ['PREFECT_API_URL']} does not answer any more "
            f"({error}); what is made is whole, the same command goes on from there"
        ) from None
    if state.name not in ("Rejected", WAITING):
        state.result()  # raises what the flow raised
