"""Several training processes on one machine: started together, ended together.

MindSpore's collectives need a scheduler process and one process a rank. `launch` starts them with
a free port and waits; none of them outlives it, not even if it is killed (parent-death signal).
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import BadInput, StageFailed

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 7.0
"""What rank 0 gets to write down its state when the launch is stopped."""
LAST_LINES = 20
SCHEDULER = "import mindspore.communication; mindspore.communication.init()"


@dataclass(frozen=True)
class Group:
    """This process's place among those that train together."""

    rank: int = 0
    size: int = 1


def join(size: int) -> Group:
    """Join the group that `launch` started. A single process never does: init needs a scheduler."""
    import mindspore.communication as communication

    communication.init()
    found = communication.get_group_size()
    if found != size:
        raise StageFailed(f"parallel: {found} processes were started, the config says {size}")
    return Group(communication.get_rank(), found)


def launch(
    command: Sequence[str], processes: int, scratch: Path, timeout_seconds: int = 300
) -> None:
    """Run `command` as `processes` ranks and wait until all have ended well.

    Rank 0 writes to our standard output; the rest, and all error output, goes to files in
    `scratch`, which is also the ranks' working directory. `timeout_seconds` is how late one rank
    may be for another at a collective. If interrupted, rank 0 gets SIGTERM and `GRACE_SECONDS`.
    Raises StageFailed with the failing rank's last lines, or BadInput if a rank ended with code 2.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(_root()), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "MS_WORKER_NUM": str(processes),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(port),
        "MS_NODE_TIMEOUT": str(timeout_seconds),
        "MS_RETRY_INTERVAL_LOWER": "1",  # seconds between two tries to join
        "MS_RETRY_INTERVAL_UPPER": "1",
        "GLOG_v": os.environ.get("GLOG_v", "3"),  # noqa: SIM112
    }
    started: list[_Process] = []
    try:
        # The scheduler first: a rank that finds it listening joins in seconds, else in half a
        # minute.
        scheduler = _Process(
            "scheduler",
            [sys.executable, "-c", SCHEDULER],
            environment | {"MS_ROLE": "MS_SCHED"},
            scratch,
        )
        started.append(scheduler)
        _wait_until_listening(scheduler, port)
        ranks = []
        for rank in range(processes):
            role = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}
            ranks.append(_Process(f"rank {rank}", command, environment | role, scratch))
            started.append(ranks[-1])
        _wait(ranks, scheduler)
    except BaseException as error:
        if not isinstance(error, StageFailed | BadInput) and len(started) > 1:
            _end_politely(started[1])
        raise
    finally:
        for process in started:
            process.kill()


class _Process:
    """One member: its own log file, dead when we are."""

    def __init__(
        self, name: str, command: Sequence[str], environment: dict[str, str], scratch: Path
    ):
        self.name = name
        self.log = scratch / f"{name.replace(' ', '-')}.log"
        speaks = name == "rank 0"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                list(command),
                env=environment,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=None if speaks else log,
                stderr=log,
                preexec_fn=_in_child(os.getpid(), ignores_signals=not speaks),
            )

    def failure(self) -> str:
        """How it ended, with the last of what it said."""
        code = self.popen.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"{self.name} {how}; its last lines:\n{self.last_lines()}"

    def last_lines(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LAST_LINES:])

    def kill(self) -> None:
        """Kill and reap."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.kill()
        self.popen.wait()


def _wait(ranks: list[_Process], scheduler: _Process) -> None:
    """Until every rank has ended with 0. Raises at the first that has not."""
    while True:
        codes = [rank.popen.poll() for rank in ranks]
        if any(codes):
            time.sleep(0.2)
            first = min((rank for rank in ranks if rank.popen.poll()), key=_blame)
            if first.popen.returncode == 2:
                raise BadInput(first.last_lines())
            raise StageFailed(f"parallel: {first.failure()}")
        if all(code == 0 for code in codes):
            return
        if scheduler.popen.poll() is not None:
            raise StageFailed(f"parallel: {scheduler.failure()}")
        time.sleep(0.05)


def _blame(rank: _Process) -> int:
    """Ranks that only lost their peer fail too. Told is who was killed, or has a message."""
    code = rank.popen.returncode
    return 0 if code == -signal.SIGKILL else 1 if code in (1, 2) else 2


def _wait_until_listening(scheduler: _Process, port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if scheduler.popen.poll() is not None:
            raise StageFailed(f"parallel: {scheduler.failure()}")
        time.sleep(0.05)


def _end_politely(rank: _Process) -> None:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        rank.popen.send_signal(signal.SIGTERM)
        rank.popen.wait(GRACE_SECONDS)


def _in_child(parent: int, ignores_signals: bool) -> Callable[[], None]:
    # Loaded here: between fork and exec as little as possible should happen.
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # died before the line above
                os._exit(1)
        if ignores_signals:
            # Ctrl-C reaches all of a terminal's processes; only rank 0 has something to write.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    return prepare


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _root() -> Path:
    return Path(__file__).resolve().parent.parent.parent
