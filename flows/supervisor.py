"""Runs one command so that no process of it outlives it, or the process that asked for it.

`python flows/supervisor.py [--grace SECONDS] -- COMMAND...`, standard library only. The caller
holds a pipe to its standard input. The command runs in a session of its own. When the caller dies
(the pipe closes) or asks for an end (SIGTERM, SIGINT, SIGHUP), the command's leader gets SIGTERM
and the grace to write down what it has; when the leader ends, for whatever reason, everything that
is left of it is killed. On Linux that includes processes that have left the session: orphans are
handed to this process (PR_SET_CHILD_SUBREAPER), so an empty list of children means that none is
left. Ends with the command's exit code, or 128 + the signal that killed it.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 8.0
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Run the command on the command line; returns its exit code."""
    grace, command = _arguments(sys.argv[1:])
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (*ENDINGS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # seen through the wake-up pipe
    leader = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_in_child
    )
    try:
        _watch(leader, wake_read, grace)
    finally:
        code = _kill_rest(leader)
    return code if code >= 0 else 128 - code


def _arguments(arguments: list[str]) -> tuple[float, list[str]]:
    grace = GRACE_SECONDS
    if arguments[:1] == ["--grace"]:
        grace, arguments = float(arguments[1]), arguments[2:]
    if arguments[:1] != ["--"] or len(arguments) < 2:
        sys.exit("usage: supervisor.py [--grace SECONDS] -- COMMAND...")
    return grace, arguments[1:]


def _watch(leader: "subprocess.Popen[bytes]", wake_read: int, grace: float) -> None:
    """Return when the leader has ended, on its own or because it was asked to."""
    caller = sys.stdin.fileno()
    watched = [wake_read, caller]
    deadline: float | None = None
    while leader.poll() is None:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if remaining == 0.0:
            return
        ready, _, _ = select.select(watched, [], [], remaining)
        asked = False
        if wake_read in ready:
            asked = any(number in ENDINGS for number in os.read(wake_read, 4096))
        if caller in ready and not os.read(caller, 4096):
            watched.remove(caller)
            asked = True
        if asked and deadline is None:
            deadline = time.monotonic() + grace
            os.kill(leader.pid, signal.SIGTERM)


def _kill_rest(leader: "subprocess.Popen[bytes]") -> int:
    """Kill and reap until no descendant is left; returns the leader's exit code."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)
    code = leader.wait()
    while True:
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return code
        time.sleep(0.01)


def _descendants() -> list[int]:
    """Every process below this one, from /proc; empty where there is no /proc."""
    parents: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                    # The command's name stands in brackets and may hold spaces and brackets.
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def _in_child() -> None:
    # If this supervisor itself is killed outright, the leader goes with it.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in ENDINGS:
        signal.signal(number, signal.SIG_DFL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
