"""Which Prefect server a run talks to: a named one, the one of `mindcycle up`, or one of its own.

Imports no Prefect: its settings come from the environment, which must be right before its import.
Servers run under the supervisor, so none outlives whoever started it.
"""

import atexit
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from artifacts.errors import BadInput, StageFailed
from flows.stage_process import SUPERVISOR

START_SECONDS = 600.0
"""The first start migrates a new database: seconds, or minutes where others have the cores."""
HERE = "server.json"
"""In the home: where `mindcycle up` listens."""


def prefect_home() -> Path:
    """Prefect's database and settings for this user. PREFECT_HOME names another place.

    A home of its own: Prefect migrates its database, and others may use another version of it.
    """
    named = os.environ.get("PREFECT_HOME")
    return Path(named) if named else Path.home() / ".mindcycle" / "prefect"


def set_environment() -> None:
    """What Prefect's processes inherit; a value that is set already stays."""
    home = prefect_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"PREFECT_HOME: {home} cannot be created: {error.strerror}; set it to a directory "
            "that can, or run with --no-prefect"
        ) from None
    defaults = {
        "PREFECT_HOME": str(home.absolute()),
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # The newer interface makes the browser ask amplitude.com, whatever the line above says.
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(int(START_SECONDS)),
        "PREFECT_CLI_PROMPT": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


class ServerProcess:
    """A server, or a worker, under the supervisor: it ends with this process. Output in `log`."""

    def __init__(
        self, command: list[str], log: Path, environment: Mapping[str, str], grace: float = 8.0
    ):
        self.log = log
        self._command = [sys.executable, "-I", "-S", str(SUPERVISOR), "--grace", str(grace), "--"]
        self._command += command
        self._environment = {**os.environ, **environment}
        self._stopped = False
        self._lock = threading.Lock()
        log.parent.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it, or start it again; not after `stop`."""
        with self._lock, self.log.open("ab") as file:
            if self._stopped:
                return
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._environment,
            )

    def stop(self) -> None:
        """End it and everything it started; returns when that is done."""
        with self._lock:
            self._stopped = True
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()


def answers(api_url: str, seconds: float = 5.0) -> bool:
    """Whether a Prefect server says it is well."""
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=seconds) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):
        return False


def interface_base(api_url: str) -> str:
    """The path of the user interface that a server shows first; empty if it has but one, or none.

    Prefect serves two of them, the newer one under a path of its own.
    """
    try:
        with urllib.request.urlopen(
            f"{api_url.rstrip('/').removesuffix('/api')}/ui-settings", timeout=5
        ) as r:
            settings = json.load(r)
        base = settings[f"{settings['default_ui']}_base_url"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return base if isinstance(base, str) else ""


def wait_until_up(server: ServerProcess, api_url: str) -> None:
    """Return when the server answers. Raises StageFailed if it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not answers(api_url):
        if server.process.poll() is not None:
            raise StageFailed(f"Prefect's server did not start; its log is {server.log}")
        if time.monotonic() > deadline:
            server.stop()
            raise StageFailed(
                f"Prefect's server did not answer within {START_SECONDS:.0f} s; "
                f"its log is {server.log}"
            )
        time.sleep(0.1)


def keep_up(server: ServerProcess, api_url: str) -> None:
    """From now on a server that is killed is started again, until it does not come up any more.

    Its database has what it knew, and Prefect's clients ask again until it answers.
    """

    def watch() -> None:
        with suppress(StageFailed):
            while True:
                server.process.wait()
                server.start()
                wait_until_up(server, api_url)

    threading.Thread(target=watch, daemon=True).start()


def running_server() -> str | None:
    """API address of the `mindcycle up` of this home, if it runs."""
    try:
        url = json.loads((prefect_home() / HERE).read_text("utf-8"))["api_url"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if isinstance(url, str) and answers(url) else None


def begin_connection() -> ServerProcess | None:
    """Choose the server and set PREFECT_API_URL; starts one if there is none.

    The started one boots while Prefect is imported; `wait_until_up` afterwards. It ends when this
    process does, after Prefect has handed over its last events. Raises BadInput.
    """
    set_environment()
    named = os.environ.get("PREFECT_API_URL")
    if named:
        if not answers(named):
            raise BadInput(
                f"PREFECT_API_URL: {named} does not answer; start that server, unset the variable "
                "to run without one, or run with --no-prefect"
            )
        return None
    if url := running_server():
        os.environ["PREFECT_API_URL"] = url
        return None
    port = free_port()
    server = ServerProcess(
        [
            sys.executable,
            "-m",
            "uvicorn",
            "--factory",
            "prefect.server.api.server:create_app",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--log-level",
            "error",
            "--lifespan",
            "on",
        ],
        prefect_home() / "temporary-server.log",
        # What Prefect itself sets for the servers it starts in passing: no UI, few services.
        {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"},
        grace=3.0,
    )
    # Registered before Prefect's own exit functions, hence run after them.
    atexit.register(server.stop)
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    return server


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port_free(host: str, port: int) -> None:
    """Raise BadInput if a server cannot listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        right = "stop what listens there, or choose another with --port"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            right = "--host takes an address of this machine, such as 127.0.0.1"
        raise BadInput(f"port {port} on {host}: {error.strerror or error}; {right}") from None
