"""Flow runs whose process is gone are said to have crashed, instead of running for ever.

The process of a flow run holds `<Prefect's home>/running/<run's id>` locked until it ends. A file
that nobody holds belongs to a process that is gone; if the server still takes its run for running,
nobody else will correct it: `kill -9` leaves no last word. Imports no Prefect, as its reader is the
process of `mindcycle up`.
"""

import fcntl
import json
import urllib.request
from typing import IO, Any

from flows.prefect_server import prefect_home

FOLDER = "running"
NEEDS_PROCESS = ("RUNNING", "PAUSED", "CANCELLING")
"""Types of the states that a run without a process cannot be in, but for one:"""
SUSPENDED = "Suspended"
"""Prefect starts a new process for such a run when it is resumed."""
MESSAGE = "The process of this run is gone. Start it again: it goes on from what is whole."
_HELD: list[IO[str]] = []
"""Open until this process ends, however it ends."""


def say_running(flow_run: str) -> None:
    """From now on this process is that of a flow run."""
    folder = prefect_home() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    unseen = folder / f".{flow_run}"  # until it is held, whoever looks would think nobody does
    file = unseen.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    unseen.rename(folder / flow_run)
    _HELD.append(file)


def report_crashes(api_url: str) -> None:
    """Set the runs of this home whose process is gone to Crashed, or Cancelled if that was asked.

    A server that does not answer, or does not know a run, is asked another time.
    """
    for path in sorted((prefect_home() / FOLDER).glob("[!.]*")):
        try:
            opened = path.open("r+")
        except FileNotFoundError:
            continue  # another process has just said so
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            try:
                _correct(f"{api_url.rstrip('/')}/flow_runs/{path.name}")
            except (OSError, ValueError, KeyError, TypeError):
                continue
            path.unlink(missing_ok=True)


def _correct(run: str) -> None:
    state = _call(run)["state"] or {}
    if state.get("type") not in NEEDS_PROCESS or state.get("name") == SUSPENDED:
        return
    kind = "CANCELLED" if state["type"] == "CANCELLING" else "CRASHED"
    new = {"type": kind, "name": kind.capitalize(), "message": MESSAGE}
    _call(f"{run}/set_state", {"state": new, "force": True})


def _call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)
