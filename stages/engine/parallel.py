"""Several training processes: started together, ended together.

MindSpore's collectives need a scheduler process and one process a rank. `launch` starts those of
this machine, with a free port for the scheduler, and waits; none of them outlives it, not even if
it is killed (parent-death signal). On several machines each launches its share of the ranks, and
machine 0 the scheduler.
"""

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import BadInput, StageFailed
from stages.engine.machines import CAUSE, Failure, Team

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 7.0
"""What rank 0 gets to write down its state when the launch is stopped."""
LAST_LINES = 20
NEWS_SECONDS = 3.0
"""How long a failure here waits for its cause elsewhere."""
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
    command: Sequence[str],
    processes: int,
    scratch: Path,
    timeout_seconds: int = 300,
    team: Team | None = None,
) -> None:
    """Run `command` as `processes` ranks and wait until all have ended well.

    With a `team`, this machine's share of them, in a `scratch` that all machines share.
    Rank 0 writes to our standard output; the rest, and all error output, goes to files in
    `scratch`, which is also the ranks' working directory. `timeout_seconds` is how late one rank
    may be for another at a collective. If interrupted, rank 0 gets SIGTERM and `GRACE_SECONDS`.
    Raises StageFailed with the failing rank's last lines, or BadInput if a rank ended with code 2.
    """
    if team is None or team.leads:
        scratch.mkdir(parents=True, exist_ok=True)
    started: list[_Process] = []
    ranks: list[_Process] = []
    scheduler = None
    try:
        environment = _environment(processes, timeout_seconds)
        here = range(processes)
        if team is None or team.leads:
            # The scheduler first: a rank that finds it listening joins in seconds, else in half a
            # minute.
            host = "127.0.0.1" if team is None else team.here
            environment |= {"MS_SCHED_HOST": host, "MS_SCHED_PORT": str(_free_port(host))}
            role = {"MS_ROLE": "MS_SCHED"}
            command_line = [sys.executable, "-c", SCHEDULER]
            scheduler = _Process("scheduler", command_line, environment | role, scratch)
            started.append(scheduler)
            _wait_until_listening(scheduler, host, int(environment["MS_SCHED_PORT"]))
        if team is not None:
            each = processes // team.machines.count
            here = range(team.machines.rank * each, (team.machines.rank + 1) * each)
            environment |= {"MS_WORKER_IP": team.here} | _agree(team, environment, scratch)
        for rank in here:
            role = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}
            ranks.append(_Process(f"rank {rank}", command, environment | role, scratch))
            started.append(ranks[-1])
        _wait(ranks, scheduler, team)
        if team is not None:
            team.end()
    except BaseException as error:
        if not isinstance(error, StageFailed | BadInput) and ranks and here[0] == 0:
            _end_politely(ranks[0])
        if team is not None:
            said = str(error) if isinstance(error, StageFailed | BadInput) else "was stopped"
            team.tell(Failure(CAUSE, said, isinstance(error, BadInput)))
        raise
    finally:
        for process in started:
            process.kill()


def _environment(processes: int, timeout_seconds: int) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(_root()), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "MS_WORKER_NUM": str(processes),
        "MS_NODE_TIMEOUT": str(timeout_seconds),
        "MS_RETRY_INTERVAL_LOWER": "1",  # seconds between two tries to join
        "MS_RETRY_INTERVAL_UPPER": "1",
        "GLOG_v": os.environ.get("GLOG_v", "3"),  # noqa: SIM112
    }


def _agree(team: Team, environment: dict[str, str], scratch: Path) -> dict[str, str]:
    """Where all machines find the scheduler. Raises BadInput if they do not share `scratch`."""
    if team.leads:
        mark = scratch / f"shared-{secrets.token_hex(8)}"
        mark.touch()
        team.start(int(environment["MS_SCHED_PORT"]), mark.name)
        return {}
    host, port, name = team.wait_for_start()
    if not (scratch / name).is_file():
        raise BadInput(
            f"store: {scratch.parent} here is not the directory that machine 0 writes; several "
            "machines that train together share one store, for example by NFS"
        )
    return {"MS_SCHED_HOST": host, "MS_SCHED_PORT": str(port)}


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


def _wait(ranks: list[_Process], scheduler: _Process | None, team: Team | None) -> None:
    """Until every rank of this machine has ended with 0. Raises at the first failure anywhere."""
    while True:
        codes = [rank.popen.poll() for rank in ranks]
        if any(codes):
            time.sleep(0.2)
            raise _failure(min((rank for rank in ranks if rank.popen.poll()), key=_blame), team)
        if all(code == 0 for code in codes):
            return
        if scheduler is not None and scheduler.popen.poll() is not None:
            raise StageFailed(f"parallel: {scheduler.failure()}")
        if team is not None and (elsewhere := team.failure()):
            raise elsewhere.error()
        time.sleep(0.05)


def _failure(rank: _Process, team: Team | None) -> BadInput | StageFailed:
    """What to raise for a rank that has failed, which may only have lost a peer elsewhere."""
    if rank.popen.returncode == BadInput.exit_code:
        return BadInput(rank.last_lines())
    here = Failure(_blame(rank), rank.failure())
    elsewhere = None
    if team is not None:
        team.tell(here)
        elsewhere = team.failure(NEWS_SECONDS)
    if elsewhere is not None and elsewhere.blame < here.blame:
        return elsewhere.error()
    more = f"\nand elsewhere {elsewhere.text}" if elsewhere is not None else ""
    return StageFailed(f"parallel: {here.text}{more}")


def _blame(rank: _Process) -> int:
    """Ranks that only lost their peer fail too. Told is who was killed, or has a message."""
    code = rank.popen.returncode
    return 0 if code == -signal.SIGKILL else 1 if code in (1, 2) else 2


def _wait_until_listening(scheduler: _Process, host: str, port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), timeout=1).close()
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


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _root() -> Path:
    return Path(__file__).resolve().parent.parent.parent
