"""Machines come together or say why not; a failure on one is told on the other. On loopback."""

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInput, StageFailed
from stages.engine.machines import Machines, together
from stages.engine.parallel import launch
from stages.plan import identity_of
from stages.pretrain.config import PretrainConfig
from tests.integration.test_pretrain import CONFIG


@pytest.fixture
def master() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Beside(threading.Thread):
    """A machine in a thread, and the error it ended with."""

    def __init__(self, what: Callable[[], object]):
        super().__init__(daemon=True)
        self._what, self.error = what, None
        self.start()

    def run(self) -> None:
        try:
            self._what()
        except (BadInput, StageFailed) as error:
            self.error: Exception | None = error

    def end(self) -> Exception | None:
        self.join(60)
        assert not self.is_alive()
        return self.error


def go(machines: Machines, scratch: Path, program: str) -> None:
    with together(machines, "w" * 64) as team:
        launch([sys.executable, "-c", program], machines.count, scratch, 30, team)


def test_who_comes_for_something_else_is_sent_away_and_may_come_again(
    master: str, capsys: Any
) -> None:
    def come(count: int, rank: int, work: str) -> None:
        with together(Machines(count, rank, master, 30), work) as team:
            assert team is not None
            if rank == 0:
                team.start(1234, "mark")
            else:
                assert team.wait_for_start() == ("127.0.0.1", 1234, "mark")
            team.end()

    lead = Beside(lambda: come(3, 0, "a"))
    with pytest.raises(BadInput, match=r"parallel.nodes: is 2 there and 3 on machine 0"):
        come(2, 1, "a")
    with pytest.raises(BadInput, match="machine 0 is at other work"):
        come(3, 1, "b")
    with socket.create_connection(("127.0.0.1", int(master[10:]))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""
    first = Beside(lambda: come(3, 1, "a"))
    while "machine 1 has come" not in capsys.readouterr().out:
        time.sleep(0.02)
    with pytest.raises(BadInput, match="node_rank: is 1, and so is another machine's"):
        come(3, 1, "a")
    come(3, 2, "a")
    assert (lead.end(), first.end()) == (None, None)


def test_who_resets_the_connection_does_not_end_the_waiting(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As port scanners and load balancers do, here before machine 0 has looked at it."""

    def come(rank: int) -> None:
        with together(Machines(2, rank, master, 30), "a") as team:
            assert team is not None
            team.end()

    def reset(machines: Machines, what: str) -> None:
        if machines.rank == 0:
            with socket.create_connection(machines.address) as stranger:
                no_lingering = struct.pack("ii", 1, 0)  # closing sends RST
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_lingering)

    monkeypatch.setattr("stages.engine.machines._say_waiting", reset)
    lead = Beside(lambda: come(0))
    come(1)
    assert lead.end() is None


def test_waiting_ends_when_the_work_is_done_or_nobody_comes(master: str) -> None:
    with together(Machines(2, 1, master, 30), "a", done=lambda: True) as team:
        assert team is None
    said = f"machine 0 has not listened at {master} within 1 sec"
    with pytest.raises(StageFailed, match=said), together(Machines(2, 1, master, 1), "a"):
        pass
    said = r"machine 1 has not come to .* --set pretrain.parallel.node_rank=1"
    with pytest.raises(StageFailed, match=said), together(Machines(2, 0, master, 1), "a"):
        pass


@pytest.mark.parametrize("where", ["taken", "192.0.2.1:7077", "no-such-host.invalid:7077"])
def test_an_address_that_cannot_be_used_is_bad_input(where: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if where == "taken":
            where = f"127.0.0.1:{taken.getsockname()[1]}"
        said = f"parallel.master: {where} cannot be used: "
        with pytest.raises(BadInput, match=said), together(Machines(2, 0, where, 5), "a"):
            pass


def test_a_store_that_is_not_shared_is_bad_input_everywhere(master: str, tmp_path: Path) -> None:
    other = Beside(lambda: go(Machines(2, 1, master, 30), tmp_path / "b" / "ranks", "pass"))
    with pytest.raises(BadInput, match=r"machine 1 .* is not the directory that machine 0 writes"):
        go(Machines(2, 0, master, 30), tmp_path / "a" / "ranks", "import time; time.sleep(60)")
    assert isinstance(other.end(), BadInput)
    assert not (tmp_path / "b").exists()


def test_the_first_failure_is_told_on_every_machine(master: str, tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "if os.environ['MS_NODE_ID'] == '1': sys.exit('the disk is full')\n"
        "time.sleep(300)"
    )
    other = Beside(lambda: go(Machines(2, 1, master, 30), tmp_path, program))
    with pytest.raises(StageFailed, match=r"machine 1 \(127.0.0.1\): rank 1 ended with code 1"):
        go(Machines(2, 0, master, 30), tmp_path, program)
    assert "the disk is full" in str(other.end())


def test_a_machine_that_is_gone_is_told(master: str, tmp_path: Path) -> None:
    def leave() -> None:
        with together(Machines(2, 1, master, 30), "w" * 64) as team:
            assert team is not None
            team.wait_for_start()

    other = Beside(leave)
    with pytest.raises(StageFailed, match=r"machine 1 .* is gone: its connection has ended"):
        go(Machines(2, 0, master, 30), tmp_path, "import time; time.sleep(300)")
    assert other.end() is None


def test_where_it_runs_takes_no_part_in_what_it_is() -> None:
    def identity(**parallel: Any) -> str:
        config = PretrainConfig.model_validate({**CONFIG, "parallel": {"data": 2, **parallel}})
        return identity_of("checkpoint", 1, config.result_config(), {}, [])

    there = {"nodes": 2, "master": "10.0.0.1:7077"}
    assert identity() == identity(**there) == identity(**there, node_rank=1)
    assert identity() != identity(zero=1)
