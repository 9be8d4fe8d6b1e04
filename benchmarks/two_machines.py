"""A lifecycle over two machines under one Prefect server: training on one, the rest on the other.

    python -m benchmarks.two_machines --share directory
    python -m benchmarks.two_machines --share s3 --postgres /usr/lib/postgresql/15/bin

The machines are network namespaces with a host name, a clone and a Prefect home each, so this takes
root. Machine 0 runs the server (on PostgreSQL if the folder of its programs is given), a worker of
the pool `train`, and for `--share s3` an S3-compatible server; machine 1 a worker of `score`. They
share the store's directory, or nothing but the bucket. Each step is a deployment that is started on
machine 0 with `prefect deployment run --watch`, as docs/flows.md has it. Prints what ran where, as
JSON; the exit code is 1 unless it ended in a release.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from artifacts.manifest import problems_with_files
from artifacts.store import list_artifacts
from tests.command import ROOT
from tests.machines import Machine, two_machines

CONFIG = "configs/tiny.yaml"
POOLS = {
    "train": ("pretrain", "finetune"),
    "score": ("evaluate", "gate", "export", "release"),
}
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pretrain", {}),
    ("evaluate", {"model": "base"}),
    ("finetune", {}),
    ("evaluate", {"model": "tuned"}),
    ("export", {}),
    ("release", {}),
)
START_SECONDS = 600.0
SERVER, BUCKETS = 4200, 5000
"""Ports on machine 0."""


class Place:
    """The two machines, and what is started on them."""

    def __init__(self, machines: tuple[Machine, Machine], folder: Path, stack: ExitStack):
        self.machines, self.folder, self._stack = machines, folder, stack
        self.api = f"http://{machines[0].address}:{SERVER}/api"
        self.s3 = f"http://{machines[0].address}:{BUCKETS}"

    def clone(self, machine: Machine) -> Path:
        """The machine's own clone of this code."""
        return self.folder / "clones" / machine.runtime.name

    def environment(self, machine: Machine) -> dict[str, str]:
        """Of whatever runs there."""
        return machine.environment() | {
            "PYTHONPATH": str(self.clone(machine)),
            "PREFECT_HOME": str(self.folder / "homes" / machine.runtime.name),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_UI_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "AWS_ENDPOINT_URL": self.s3,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self, machine: Machine, name: str, *command: str, **more: str) -> None:
        """Start something there until the end; what it says goes to NAME.log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                machine.inside(*command),
                cwd=self.clone(machine),
                env=self.environment(machine) | more,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._stack.callback(_end, process)

    def run(self, machine: Machine, *command: str) -> str:
        """Run something there to its end. Raises with what it said if it fails."""
        done = subprocess.run(
            machine.inside(*command),
            cwd=self.clone(machine),
            env=self.environment(machine),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
        return done.stdout


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", choices=("directory", "s3"), default="directory")
    parser.add_argument("--postgres", type=Path, help="folder with initdb, postgres and createdb")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with us
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-machines-")))
        folder.chmod(0o755)
        machines = stack.enter_context(two_machines(folder))
        place = Place(machines, folder, stack)
        for machine in machines:
            (folder / "homes" / machine.runtime.name).mkdir(parents=True)
            subprocess.run(
                ["git", "clone", "--quiet", "--shared", str(ROOT), str(place.clone(machine))],
                check=True,
            )
        database = {}
        if arguments.postgres:
            url = stack.enter_context(postgres(place, arguments.postgres))
            database["PREFECT_API_DATABASE_CONNECTION_URL"] = url
        outcome = lifecycle(place, arguments.share, database)
        outcome["database"] = "PostgreSQL" if database else "SQLite"
        print(json.dumps(outcome, indent=1))
        return 0 if outcome["released"] else 1


def lifecycle(place: Place, share: str, database: dict[str, str]) -> dict[str, Any]:
    """Server, pools, deployments, workers; then every run. Returns what ran where."""
    first, second = place.machines
    prefect = [sys.executable, "-m", "prefect"]
    where = ["--host", first.address, "--port", str(SERVER)]
    begin = time.monotonic()
    place.start(first, "server", *prefect, "server", "start", *where, **database)
    until(lambda: place.run(first, *python(f"{_GET}('{place.api}/health')")))
    started = time.monotonic() - begin
    if share == "s3":
        moto = ["-m", "moto.server", "-H", first.address, "-p", str(BUCKETS)]
        place.start(first, "buckets", sys.executable, *moto)
        make = "import fsspec; fsspec.filesystem('s3').mkdir('bucket')"
        until(lambda: place.run(first, *python(make)))
    for pool, deployments in POOLS.items():
        place.run(first, *prefect, "work-pool", "create", pool, "--type", "process")
        place.run(first, *prefect, "work-pool", "set-concurrency-limit", pool, "1")
        for name in deployments:
            deploy = ["--no-prompt", "deploy", "--name", f"{name}/default", "--pool", pool]
            place.run(first, *prefect, *deploy)
    for machine, pool in ((first, "train"), (second, "score")):
        place.start(machine, pool, *prefect, "worker", "start", "--pool", pool)
    parameters: dict[str, Any] = {"config": CONFIG, "store": "store"}
    if share == "s3":
        parameters["overrides"] = ["remote=s3://bucket/shared"]
    else:
        parameters["store"] = str(place.folder / "store")
    seconds = {}
    for name, more in RUNS:
        begin = time.monotonic()
        given = json.dumps(parameters | more)
        watch = [*prefect, "deployment", "run", f"{name}/default", "--params", given, "--watch"]
        place.run(first, *watch)
        seconds["-".join([name, *more.values()])] = round(time.monotonic() - begin, 1)
        print(f"{name} has run", file=sys.stderr, flush=True)
    return {
        "share": share,
        "server_start_seconds": round(started, 1),
        "seconds": seconds,
        "made_on": made_on(place, share, parameters["store"]),
        "states": states(place),
        "released": "release" in made_on(place, share, parameters["store"]),
    }


def made_on(place: Place, share: str, store: str) -> dict[str, str]:
    """Stage (and whose) -> host that made it, of whole artifacts; the same wherever they lie."""
    stores = [Path(store)]
    if share == "s3":
        stores = [place.clone(machine) / store for machine in place.machines]
    found: dict[str, str] = {}
    for each in stores:
        for path, manifest in list_artifacts(each):
            assert problems_with_files(path, manifest) == []
            name = manifest.stage
            if name == "evaluate":
                name += f" of {manifest.inputs['model'].kind} {manifest.inputs['model'].digest[:8]}"
            assert found.setdefault(name, manifest.host["name"]) == manifest.host["name"]
    return found


def states(place: Place) -> list[str]:
    """Name of every flow run's state, oldest first."""
    said = place.run(
        place.machines[0],
        *python(
            f"import json; runs = json.loads({_GET}('{place.api}/flow_runs/filter', b'{{}}'));"
            "print(json.dumps([[r['expected_start_time'], r['state']['name']] for r in runs]))"
        ),
    )
    return [name for _, name in sorted(json.loads(said.splitlines()[-1]))]


_GET = "_get"


def python(program: str) -> list[str]:
    """A program that may ask the server, as a command; namespaces have their own loopback."""
    get = (
        "import urllib.request\n"
        "def _get(url, data=None):\n"
        "    how = {'Content-Type': 'application/json'}\n"
        "    request = urllib.request.Request(url, data, how)\n"
        "    return urllib.request.urlopen(request, timeout=60).read()\n"
    )
    return [sys.executable, "-c", get + program]


@contextmanager
def postgres(place: Place, programs: Path) -> Iterator[str]:
    """A PostgreSQL server of its own on machine 0; yields its URL as Prefect takes it."""
    first = place.machines[0]
    data = place.folder / "postgres"
    data.mkdir()
    subprocess.run(["chown", "postgres", str(data)], check=True)
    user = ["setpriv", "--reuid", "postgres", "--clear-groups", "--"]  # it refuses to be root
    place.run(
        first, *user, str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "prefect"
    )
    options = ["-D", str(data), "-h", first.address, "-k", "", "-p", "5432"]
    rules = data / "pg_hba.conf"
    with rules.open("a") as file:
        file.write(f"host all all {first.address}/32 trust\n")
    place.start(first, "postgres", *user, str(programs / "postgres"), *options)
    create = [str(programs / "createdb"), "-h", first.address, "-U", "prefect", "prefect"]
    until(lambda: place.run(first, *create))
    yield f"postgresql+asyncpg://prefect@{first.address}/prefect"


def until(done: Any) -> None:
    """Try until it does not raise."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            done()
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
