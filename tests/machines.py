"""Two machines on one: network namespaces joined by a cable, and what runs in each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ADDRESSES = ("10.203.77.2", "10.203.77.1")
"""Machine 0 has not the lowest: ranks must follow what machines are told, not their addresses."""
HOLDS = (
    "import socket, sys; socket.sethostname(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
)
"""Keeps a namespace open until its standard input closes, with this process at the latest."""


@dataclass(frozen=True)
class Machine:
    """One namespace, of network and host name."""

    holder: "subprocess.Popen[bytes]"
    address: str
    runtime: Path
    """Its own TMPDIR: trainings take turns on a machine."""

    def inside(self, *command: str) -> list[str]:
        """A command that runs there."""
        spaces = f"/proc/{self.holder.pid}/ns"
        return ["nsenter", f"--net={spaces}/net", f"--uts={spaces}/uts", "--", *command]

    def environment(self) -> dict[str, str]:
        """What a process there finds."""
        return os.environ | {"TMPDIR": str(self.runtime), "OMP_NUM_THREADS": "1"}

    def processes(self) -> list[psutil.Process]:
        """All that run there, but for the holder."""
        here, found = os.readlink(f"/proc/{self.holder.pid}/ns/net"), []
        for pid in psutil.pids():
            with suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{pid}/ns/net") == here and pid != self.holder.pid:
                    found.append(psutil.Process(pid))
        return found

    def die(self) -> None:
        """Every process there is killed at once."""
        for process in self.processes():
            process.suspend()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def unplug(self) -> None:
        """The cable is pulled: nothing is said any more."""
        _run(self.inside("ip", "link", "set", "cable", "down"))


@contextmanager
def two_machines(place: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two namespaces with an address each. Skips, saying why, where none can be made."""
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        pytest.skip(f"two machines as network namespaces need {', '.join(missing)} (iproute2)")
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no network namespace can be made here, it takes root: {tried.stderr.strip()}")
    machines = []
    for number, address in enumerate(ADDRESSES):
        runtime = place / f"machine-{number}"
        runtime.mkdir()
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", sys.executable, "-I", "-c", HOLDS, runtime.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        machines.append(Machine(holder, address, runtime))
    first, second = machines
    try:
        other = str(second.holder.pid)
        veth = ("type", "veth", "peer", "name", "cable", "netns", other)
        _run(first.inside("ip", "link", "add", "cable", *veth))
        for machine in machines:
            _run(machine.inside("ip", "link", "set", "lo", "up"))
            _run(machine.inside("ip", "addr", "add", f"{machine.address}/24", "dev", "cable"))
            _run(machine.inside("ip", "link", "set", "cable", "up"))
        yield first, second
    finally:
        for machine in machines:
            machine.die()
            machine.holder.communicate()


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
