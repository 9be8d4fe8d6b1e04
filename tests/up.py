"""`mindcycle up` for tests: started on a free port, and its server's API."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.prefect_server import free_port
from tests.command import start_mindcycle


class Server:
    """The API of a Prefect server."""

    def __init__(self, url: str):
        self.url = url

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """What it answers; a body makes it a POST."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        for pause in (1, 2, 4, 8, None):
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return json.loads(response.read() or "null")
            except urllib.error.HTTPError as error:
                # Its database is locked for now: Prefect's own clients try again too.
                if error.code != 503 or pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a deployment; the id of its run."""
        found = self.call(f"/deployments/name/{deployment}")
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.call(f"/deployments/{found['id']}/create_flow_run", body)["id"])

    def state(self, run: str) -> str:
        """The name of a run's state."""
        return str(self.call(f"/flow_runs/{run}")["state"]["name"])

    def wait(self, run: str, *names: str, seconds: float = 120) -> str:
        """Wait until a run is in one of these states; which one."""
        deadline = time.monotonic() + seconds
        while (name := self.state(run)) not in names:
            assert time.monotonic() < deadline, f"still {name}"
            time.sleep(0.3)
        return name


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def start_up(
    home: Path, *options: object, **changes: str
) -> "tuple[subprocess.Popen[str], Server]":
    """A running `up`: its process, and its server."""
    port = free_port()
    process = start_mindcycle("up", "--port", port, *options, PREFECT_HOME=str(home), **changes)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "Schedules are off" in line:
            return process, Server(f"http://127.0.0.1:{port}/api")
    raise AssertionError("".join(said))
