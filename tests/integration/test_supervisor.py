"""No process outlives the supervisor's caller, however either of them ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.stage_process import SUPERVISOR, run_supervised

# Starts a child that ignores SIGTERM, leaves the session and loses its parent, then waits itself.
FAMILY = """
import os, signal, subprocess, sys, time
child = (
    "import os, signal, time\\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
    "os.setsid()\\n"
    "if os.fork(): os._exit(0)\\n"
    "os.write(1, b'orphan %d\\\\n' % os.getpid())\\n"
    "time.sleep(300)\\n"
)
subprocess.run([sys.executable, "-c", child], check=True)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
os.write(1, b"child %d\\n" % other.pid)
os.write(1, b"leader %d\\n" % os.getpid())
"""
WAITING = FAMILY + "time.sleep(300)\n"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING
POLITE = (
    "import signal, sys\n"
    "def stop(*_):\n    print('written', flush=True); sys.exit(7)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
) + WAITING


def start(program, *options, **popen):
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", SUPERVISOR, *options, "--", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **popen,
    )
    lines = [process.stdout.readline() for _ in range(3)] if FAMILY in program else []
    return process, dict(map(_pid, lines))


def _pid(line):
    name, pid = line.split()
    return name, int(pid)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def living(pids):
    return [name for name, pid in pids.items() if alive(pid)]


def wait_gone(pids, seconds):
    deadline = time.monotonic() + seconds
    while living(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return living(pids)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 77])
def test_exit_codes_pass_through(code):
    process, _ = start(f"import sys; sys.exit({code})")
    assert process.wait(20) == code


def test_death_by_signal_is_told_as_shells_do():
    process, _ = start("import os; os.kill(os.getpid(), 9)")
    assert process.wait(20) == 137


def test_leader_that_ends_leaves_nobody_behind():
    process, pids = start(FAMILY)
    assert process.wait(20) == 0
    assert living(pids) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all(number):
    process, pids = start(WAITING)
    process.send_signal(number)
    assert process.wait(5) == 128 + signal.SIGTERM
    assert living(pids) == []


def test_the_leader_may_write_down_what_it_has():
    process, pids = start(POLITE)
    process.terminate()
    assert process.wait(5) == 7
    assert process.stdout.read() == "written\n"
    assert living(pids) == []


def test_who_ignores_the_request_is_killed_after_the_grace():
    process, pids = start(STUBBORN, "--grace", "1")
    begin = time.monotonic()
    process.terminate()
    assert process.wait(10) == 137
    assert time.monotonic() - begin > 0.9
    assert living(pids) == []


def test_the_callers_sudden_death_ends_all():
    caller = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from flows.stage_process import run_supervised\n"
            f"run_supervised([sys.executable, '-c', {WAITING!r}],"
            " lambda line: print(line, flush=True), pathlib.Path('/dev/null'))",
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = dict(_pid(caller.stdout.readline()) for _ in range(3))
    os.killpg(caller.pid, signal.SIGKILL)
    assert wait_gone(pids, 5) == []


def test_the_supervisors_sudden_death_ends_the_leader():
    process, pids = start(WAITING)
    process.kill()
    try:
        assert wait_gone({"leader": pids["leader"]}, 5) == []
    finally:
        os.kill(pids["child"], signal.SIGKILL)
        os.kill(pids["orphan"], signal.SIGKILL)


def test_lines_arrive_one_by_one_and_the_log_holds_all(tmp_path):
    lines = []
    program = (
        "import sys; print('one'); print('50 %\\r100 %'); print(); "
        "print('two', file=sys.stderr); sys.stdout.buffer.write(b'\\xff\\n')"
    )
    code = run_supervised([sys.executable, "-c", program], lines.append, tmp_path / "log")
    assert code == 0
    assert sorted(lines) == sorted(["one", "100 %", "two", "\ufffd"])
    assert (tmp_path / "log").read_bytes().count(b"\n") == 5


def test_an_interruption_ends_the_command_and_goes_on_upwards(tmp_path):
    pids = {}

    def interrupt(line):
        name, pid = _pid(line)
        pids[name] = pid
        if len(pids) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_supervised([sys.executable, "-c", WAITING], interrupt, tmp_path / "log")
    assert living(pids) == []
