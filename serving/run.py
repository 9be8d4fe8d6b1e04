"""`mindcycle serve`: the endpoint until Ctrl-C or SIGTERM."""

import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from artifacts.errors import BadInput
from artifacts.validation import shown
from serving.app import Limits, Server
from serving.bundle import Served, find_bundle
from serving.engine import Engine
from serving.meters import Meters
from stages.evaluate.sampling import Sampling

LONGEST_GRACE = 86_400.0
"""A day; clocks that wait do not take every number."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WITHIN = 5.0
"""Seconds that connections have to close after the last answer."""
KEPT = 75
"""Seconds that an idle connection is kept: longer than clients and proxies keep theirs, since one
that the server closed first could be closed under the client's next request."""


@dataclass(frozen=True)
class Place:
    """Where to listen, and how much at once."""

    host: str
    port: int
    """0 takes a free one."""
    rows: int
    """Answers decoded at once."""
    waiting: int
    """Requests that may wait besides."""
    grace: float
    """Seconds that answers have to end once the server is asked to stop."""


def serve(
    bundle: str,
    store: Path,
    name: str | None,
    adapters: Sequence[str],
    sampling: Sampling,
    limits: Limits,
    place: Place,
    threads: int,
) -> None:
    """Serve a bundle; returns after a clean stop. Raises BadInput before anything is served."""
    if not 0 <= place.grace <= LONGEST_GRACE:
        raise BadInput(f"--grace: is {place.grace}; 0 to {LONGEST_GRACE:.0f} would be right")
    if not place.host:
        raise BadInput("--host: is ''; an address such as 127.0.0.1 would be right")
    files = _named_files(adapters)
    directory = find_bundle(bundle, store)
    name = name or directory.resolve().name
    listening = _listen(place.host, place.port)
    with listening:
        served = Served(directory, threads, files)
        tuned = served.model.adapters
        if name in tuned:
            raise BadInput(f"--name: {name} is an adapter's name; give one of them another")
        meters = Meters()
        engine = Engine(served.model, place.rows, place.waiting, meters)
        app = Server(served, engine, name, tuned, sampling, limits, meters).app()
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=KEPT,
            timeout_graceful_shutdown=round(place.grace + WITHIN),
        )
        host, port = listening.getsockname()[:2]
        if place.host not in LOOPBACK:
            print(f"Anyone who reaches {place.host}:{port} can ask: there is no password.")
        shown_host = f"[{host}]" if ":" in host else host
        print(
            f"Serving {', '.join([name, *tuned])} at http://{shown_host}:{port}/v1, Ctrl-C ends it",
            flush=True,
        )
        server = Uvicorn(config, engine, place.grace)
        # uvicorn passes the signal that ended it on to the handlers before it: it was heard.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, server.handle_exit)
        try:
            server.run(sockets=[listening])
        finally:
            engine.stop(0)
            engine.join()


class Uvicorn(uvicorn.Server):
    """Lets answers end when it is asked to stop; a second signal cuts them."""

    def __init__(self, config: uvicorn.Config, engine: Engine, grace: float):
        super().__init__(config)
        self._engine, self._grace = engine, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._engine.stop(0 if self.should_exit else self._grace)
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    """Bind before the model is loaded: a taken port is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        said = getattr(error, "strerror", None) or error
        raise BadInput(f"--host, --port: cannot listen on {host}:{port}: {said}") from None
    return listening


def _named_files(adapters: Sequence[str]) -> dict[str, Path]:
    """NAME=FILE entries. Raises BadInput for every one that is none, or names one twice."""
    files: dict[str, Path] = {}
    problems = []
    for entry in adapters:
        name, equals, path = entry.partition("=")
        if not (name and equals and path):
            problems.append(f"--adapter: is {shown(entry)}; NAME=FILE would be right")
        elif name in files:
            problems.append(f"--adapter: names {name} twice; once would do")
        else:
            files[name] = Path(path)
    if problems:
        raise BadInput(*problems)
    return files
