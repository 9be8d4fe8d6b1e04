"""What Prefect costs: how long until a stage starts, and how long a run with nothing to do takes.

    python -m benchmarks.flows_overhead --repeat 3

Four ways to run configs/tiny.yaml: without Prefect, with a server of the command's own, from the
command line with `mindcycle up` at hand, and as a deployment's run taken by its worker. Each with
a history of a few runs, and with 200 more, which are copies of a real one with its steps, states,
pages and logs, made in Prefect's database. Prints medians, and the CPU time of a command with
nothing to do, which other work on the machine changes less, as a Markdown table.
"""

import argparse
import os
import resource
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.command import mindcycle
from tests.up import Server, start_up

TINY = "configs/tiny.yaml"
HISTORY = 200
TABLES = ("flow_run", "flow_run_state", "task_run", "task_run_state", "artifact", "log")
"""Where a run is found in Prefect's database."""
LINKS = ("id", "flow_run_id", "task_run_id", "state_id")
"""`id` names a row, the others lead to one."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        place.lifecycle(None)
        place.lifecycle(place.home)  # Prefect's database is made, and a run to copy
        print("| runs before | way | until a stage starts | nothing to do | CPU of that |")
        print("|---|---|---|---|---|")
        measure("-", "without Prefect", place, None, repeat)
        for before in (0, HISTORY):
            copy_run(place.home / "prefect.db", before)
            measure(str(before), "a server of its own", place, place.home, repeat)
            process, server = start_up(place.home)
            try:
                measure(str(before), "command line, `up` at hand", place, place.home, repeat)
                start = median(partial(place.deployed, server, "corpus", True), repeat)
                idle = median(partial(place.deployed, server, "lifecycle", False), repeat)
                show(str(before), "deployment, taken by its worker", start, idle, None)
            finally:
                process.terminate()
                process.wait(60)


def measure(before: str, way: str, place: "Place", home: Path | None, repeat: int) -> None:
    """Measure the command line one way, and show it."""
    start = median(partial(place.start, home), repeat)
    used = cpu_seconds()
    idle = median(partial(place.lifecycle, home), repeat)
    show(before, way, start, idle, (cpu_seconds() - used) / repeat)


def cpu_seconds() -> float:
    """What the commands so far have taken, a server of their own included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(before: str, way: str, start: float, idle: float, cpu: float | None) -> None:
    """One line of the table."""
    used = "-" if cpu is None else f"{cpu:.1f} s"
    print(f"| {before} | {way} | {start:.1f} s | {idle:.1f} s | {used} |", flush=True)


def median(run: Callable[[], float], repeat: int) -> float:
    """Of some runs, seconds."""
    return statistics.median(run() for _ in range(repeat))


class Place:
    """A store in which everything is done, and a home for Prefect."""

    def __init__(self, folder: Path):
        self.store, self.home = folder / "store", folder / "home"
        self.seed = 0

    def lifecycle(self, home: Path | None) -> float:
        """Seconds of the whole lifecycle."""
        return self._timed("run", TINY, home=home)

    def start(self, home: Path | None) -> float:
        """Seconds from the command's start until a stage's process is started."""
        begin = time.time()
        fresh = (word for override in self._fresh() for word in ("--set", override))
        self._timed("stage", "corpus", TINY, *fresh, home=home)
        return self._last_start() - begin

    def deployed(self, server: Server, name: str, fresh: bool) -> float:
        """Seconds of a deployment's run: until it has ended, or its `fresh` stage has started."""
        overrides = self._fresh() if fresh else []
        begin = time.time()
        run = server.start(
            f"{name}/default", config=TINY, store=str(self.store), overrides=overrides
        )
        state = server.wait(run, "Completed", "Skipped", "Failed", "Crashed", seconds=600)
        assert state == ("Completed" if fresh else "Skipped")
        return (self._last_start() if fresh else time.time()) - begin

    def _fresh(self) -> list[str]:
        """Overrides that make the corpus a new one; any seed's has documents to validate with."""
        self.seed += 1
        return [f"corpus.seed={self.seed}", "corpus.validation_share=0.2"]

    def _last_start(self) -> float:
        """When the last stage's request was written, just before its process was started."""
        return max(path.stat().st_mtime for path in self.store.glob("logs/*/*.request.json"))

    def _timed(self, *arguments: str, home: Path | None) -> float:
        how = ["--no-prefect"] if home is None else []
        begin = time.time()
        home = home or self.home
        ran = mindcycle(*arguments, *how, "--store", self.store, PREFECT_HOME=str(home))
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return time.time() - begin


def copy_run(database: Path, times: int) -> None:
    """Put copies of the first flow run and of all that belongs to it into Prefect's database."""
    with sqlite3.connect(database) as connection:
        connection.row_factory = sqlite3.Row
        (run,) = connection.execute("select id from flow_run order by created limit 1").fetchone()
        rows = {
            table: [dict(each) for each in connection.execute(_belonging(table), {"run": run})]
            for table in TABLES
        }
        for _ in range(times):
            new: dict[str, str] = {}
            for table, entries in rows.items():
                for entry in entries:
                    changed = {
                        key: new.setdefault(value, str(uuid.uuid4()))
                        if key in LINKS and value is not None
                        else value
                        for key, value in entry.items()
                    }
                    marks = ", ".join("?" * len(changed))
                    names = ", ".join(f'"{key}"' for key in changed)
                    connection.execute(
                        f"insert into {table} ({names}) values ({marks})", list(changed.values())
                    )


def _belonging(table: str) -> str:
    if table == "flow_run":
        return "select * from flow_run where id = :run"
    if table == "task_run_state":
        return (
            "select * from task_run_state where task_run_id in "
            "(select id from task_run where flow_run_id = :run)"
        )
    return f"select * from {table} where flow_run_id = :run"


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    main()
