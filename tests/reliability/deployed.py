"""`mindcycle up` and a deployment's run on it, with the processes that can be struck."""

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.reliability.place import RUN, Place, Running
from tests.up import start_up

ENDS = ("Completed", "Released", "Skipped", "Rejected", "Failed", "Crashed", "Cancelled")
SOON = {"PREFECT_WORKER_QUERY_SECONDS": "2"}
"""The worker asks for work this often; by default every ten seconds, which only takes time here."""


class Up:
    """A running `mindcycle up`, which is started again on the same home after a fault."""

    def __init__(self, home: Path):
        self.home = home
        self.start()

    def start(self) -> None:
        """Start it."""
        self.process, self.server = start_up(self.home, "--runs", "2", **SOON)

    def part(self, words: str) -> psutil.Process:
        """The server or the worker: the one whose command has these words."""
        for supervisor in psutil.Process(self.process.pid).children():
            for one in supervisor.children():
                with suppress(psutil.ZombieProcess):
                    if words in " ".join(one.cmdline()):
                        return one
        raise AssertionError(f"no process with {words!r}")

    def ended(self) -> str:
        """Wait until it ends by itself; what it said at last."""
        said, _ = self.process.communicate(timeout=120)
        return said

    def stop(self) -> None:
        """End it and all it has started."""
        if self.process.poll() is not None:
            return
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=60)
        for one in (self.process, *family):
            with suppress(psutil.NoSuchProcess):
                one.kill()


class DeployedRun(Running):
    """A deployment's run; `mindcycle up` starts its processes."""

    def __init__(self, up: Up, place: Place, deployment: str = "pretrain", **parameters: Any):
        self.up, self.store = up, place.store
        self._family: dict[int, psutil.Process] = {}
        self._stages: list[psutil.Process] = []
        self.id = up.server.start(
            f"{deployment}/default", config=str(RUN), store=str(place.store), **parameters
        )

    def family(self) -> list[psutil.Process]:
        """Every process of the run that was ever seen here."""
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if one.environ().get("PREFECT__FLOW_RUN_ID") == self.id:
                    self._family[one.pid] = one
        return list(self._family.values())

    def flow(self) -> psutil.Process:
        """The process of the flow run."""
        (found,) = (one for one in self.family() if "prefect.engine" in one.cmdline())
        return found

    def ended(self) -> bool:
        """Whether its processes have come and gone."""
        return bool(self._family) and not self.alive()

    def cleanup(self) -> None:
        """Leave no process behind."""
        for one in self.family():
            with suppress(psutil.NoSuchProcess):
                one.kill()

    def state(self) -> str:
        """Its state now: name, and message."""
        state = self.up.server.call(f"/flow_runs/{self.id}")["state"]
        return f"{state['name']}: {state['message'] or ''}"

    def ends(self, seconds: float = 300) -> str:
        """Wait until it is in a state to stay in; name and message."""
        self.up.server.wait(self.id, *ENDS, seconds=seconds)
        return self.state()

    def said(self) -> str:
        """Its state, and what its stages have written to their logs."""
        logs = sorted(self.store.glob("logs/*/*.log"))
        return "\n".join([self.state(), *(log.read_text("utf-8", "replace") for log in logs)])
