"""A launch of several processes ends as one, whoever dies first. The ranks here do no training."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from artifacts.errors import BadInput, StageFailed
from stages.engine.parallel import launch

SLEEP = "import time; time.sleep(300)"
LAUNCH = (
    "import sys; from pathlib import Path; from stages.engine.parallel import launch;"
    "from stages.process import _stop; import signal; signal.signal(signal.SIGTERM, _stop);"
    "launch([sys.executable, '-c', sys.argv[1]], 2, Path(sys.argv[2]))"
)


def ranks(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def start(program: str, scratch: Path) -> "tuple[subprocess.Popen[str], list[int]]":
    """A process that launches two ranks, once they run, with the members' process ids."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, program, str(scratch)], stdout=subprocess.PIPE, text=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(members := children.read_text().split()) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    return process, [int(pid) for pid in members]


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pids: list[int], seconds: float = 5.0) -> None:
    begin = time.monotonic()
    while any(alive(pid) for pid in pids):
        assert time.monotonic() - begin < seconds
        time.sleep(0.02)


def test_no_member_outlives_a_killed_parent(tmp_path: Path) -> None:
    process, members = start(SLEEP, tmp_path)
    process.kill()
    process.communicate()
    wait_for_end(members)


def test_a_stop_lets_rank_0_write_and_then_ends_all(tmp_path: Path) -> None:
    writes = (
        "import os, signal, sys, time\n"
        "def stop(*_):\n"
        "    time.sleep(0.5); print('written by', os.environ['MS_NODE_ID'], flush=True)\n"
        "    os._exit(0)\n"
        "if os.environ['MS_NODE_ID'] == '0': signal.signal(signal.SIGTERM, stop)\n"
        "open('ready-' + os.environ['MS_NODE_ID'], 'w').close()\n" + SLEEP
    )
    process, members = start(writes, tmp_path)
    while not (tmp_path / "ready-0").exists() or not (tmp_path / "ready-1").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert out == "written by 0\n"
    wait_for_end(members)


def test_the_first_failure_ends_the_rest_and_is_told(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "if os.environ['MS_NODE_ID'] == '1': sys.exit('the disk is full')\n" + SLEEP
    )
    begin = time.monotonic()
    with pytest.raises(StageFailed, match="rank 1 ended with code 1") as error:
        launch(ranks(program), 2, tmp_path)
    assert "the disk is full" in str(error.value)
    assert time.monotonic() - begin < 60
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if alive(int(pid))]


def test_bad_input_in_a_rank_stays_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="corpus: too short"):
        launch(ranks("import sys; sys.stderr.write('corpus: too short'); sys.exit(2)"), 2, tmp_path)


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "if os.environ['MS_NODE_ID'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n" + SLEEP
    )
    with pytest.raises(StageFailed, match="rank 0 was killed by signal 9"):
        launch(ranks(program), 2, tmp_path)


def test_ranks_that_end_well_end_the_launch(tmp_path: Path) -> None:
    launch(ranks("pass"), 3, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rank-0.log",
        "rank-1.log",
        "rank-2.log",
        "scheduler.log",
    ]
