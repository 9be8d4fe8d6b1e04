"""The one way a stage runs: check, skip if done, work beside the final place, publish.

`python -m stages.<name> REQUEST.json` ends in `main`. Exit codes: 0 done, 1 failed while working,
2 bad input (nothing was done), 3 rejected by the gate.
"""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from artifacts.claims import claims
from artifacts.errors import BadInput, MindCycleError, StageFailed, said_of
from artifacts.json_files import read_json
from artifacts.manifest import Manifest, content_digest, list_files, write_manifest
from artifacts.store import prepare_store
from artifacts.validation import sentences
from artifacts.writing import exclusive, publish
from stages.plan import Planned, plan
from stages.spec import Job, Request, StageSpec
from stages.turns import turn

PACKAGES = (
    "mindcycle",
    "mindspore",
    "numpy",
    "onnx",
    "onnxruntime",
    "lm_eval",
    "tokenizers",
    "safetensors",
    "datasets",
    "pydantic",
)

Run = Callable[[Job], dict[str, Any]]
"""A stage's work: fills `job.work`, returns the headline figures (plain JSON values)."""


class Stopped(BaseException):
    """SIGTERM or Ctrl-C arrived. Not an Exception, so that no handler mistakes it for a failure."""

    def __init__(self, signal_number: int):
        self.signal_number = signal_number
        super().__init__(signal_number)


def main(spec: StageSpec, run: Run) -> None:
    """Run one stage from the request file named on the command line; never returns."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        if len(sys.argv) != 2:
            raise BadInput(f"usage: python -m stages.{spec.name} REQUEST.json")
        manifest = execute(spec, run, read_request(Path(sys.argv[1])))
        code = spec.exit_code(manifest)
    except MindCycleError as error:
        said = str(error).removeprefix(f"{spec.name}: ")
        print(f"{spec.name}: {said}", file=sys.stderr, flush=True)
        code = error.exit_code
    except Stopped as stop:
        print(f"{spec.name}: stopped; the same command goes on from here", file=sys.stderr)
        code = 128 + stop.signal_number
    except OSError as error:
        print(f"{spec.name}: {said_of(error, 'store')}", file=sys.stderr)
        code = 1
    except MemoryError as error:
        said = str(error) or "no more is to be had"
        print(f"{spec.name}: memory does not suffice: {said}", file=sys.stderr)
        code = 1
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # MindSpore's worker threads can hang an ordinary interpreter exit.
    os._exit(code)


def main_among(*stages: tuple[StageSpec, Run]) -> None:
    """`main` for a package of several stages: the one that the request names, else the first."""
    try:
        name = read_request(Path(sys.argv[1])).stage
    except (IndexError, MindCycleError):
        name = ""  # `main` says what is wrong with it
    main(*next((each for each in stages if each[0].name == name), stages[0]))


def execute(spec: StageSpec, run: Run, request: Request) -> Manifest:
    """Do the work of `request`, or find it done. Returns the artifact's manifest."""
    with claims(f"{spec.name}-{os.getpid()}") as using:
        # Again, for a stage that outlives its flow a little or is run by hand.
        for path in map(Path, request.inputs.values()):
            using.add(path)
        planned = plan(spec, request)
        prepare_store(Path(request.store))
        using.add(planned.final)
        return (_help if planned.config.helps() else _execute)(planned, run)


def _execute(planned: Planned, run: Run) -> Manifest:
    spec = planned.spec
    with exclusive(planned.lock, waiting=f"{spec.name}: another process is at this; waiting"):
        manifest = planned.finished()
        if manifest is not None:
            print(f"{spec.name}: done already: {planned.final}", flush=True)
            return manifest
        with _turn(spec):
            try:
                manifest = _work(planned, run)
            except OSError as error:
                raise StageFailed(said_of(error, planned.work)) from error
    print(f"{spec.name}: wrote {planned.final}", flush=True)
    return manifest


def _turn(spec: StageSpec) -> contextlib.AbstractContextManager[object]:
    """Trainings take turns on a machine."""
    return turn(spec.name) if spec.trains else contextlib.nullcontext()


def _help(planned: Planned, run: Run) -> Manifest:
    """Lend processes to the machine that holds the lock, and see it finish."""
    spec = planned.spec
    if planned.finished() is None:
        with _turn(spec):
            run(_job(planned))
    # Until it is published; a machine that dies over it gives the lock up.
    with exclusive(planned.lock):
        manifest = planned.finished()
    if manifest is None:
        raise StageFailed(
            f"{planned.final}: is not there, though the processes here have done their part; "
            "machine 0 says why"
        )
    print(f"{spec.name}: is there: {planned.final}", flush=True)
    return manifest


def _job(planned: Planned) -> Job:
    return Job(planned.config, planned.inputs, planned.work, planned.identity, planned.final)


def _work(planned: Planned, run: Run) -> Manifest:
    if planned.work.exists() and not planned.spec.resumes:
        shutil.rmtree(planned.work)
    fresh = not planned.work.exists()
    planned.work.mkdir(parents=True, exist_ok=True)
    started = datetime.now(timezone.utc)
    try:
        headline = run(_job(planned))
    except BadInput:
        if fresh:  # what was written can serve nobody: right input is other work
            shutil.rmtree(planned.work, ignore_errors=True)
        raise
    files = list_files(planned.work)
    manifest = Manifest(
        kind=planned.spec.makes,
        stage=planned.spec.name,
        code_version=planned.spec.code_version,
        identity=planned.identity,
        digest=content_digest(planned.spec.makes, files),
        files=files,
        inputs=planned.input_entries,
        sources=planned.sources,
        config=planned.config.result_config(),
        seeds=planned.config.seeds(),
        packages=_packages(),
        host=_host(),
        started=started.isoformat(timespec="seconds"),
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        headline=headline,
    )
    manifest = write_manifest(planned.work, manifest)
    publish(planned.work, planned.final)
    return manifest


def read_request(path: Path) -> Request:
    """Read a request file. Raises BadInput."""
    try:
        return TypeAdapter(Request).validate_python(read_json(path))
    except ValidationError as error:
        raise BadInput(*sentences(error, "request")) from None


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {"python": platform.python_version()}


def _host() -> dict[str, str]:
    source = Path(__file__).resolve().parent.parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "HEAD"],
            timeout=10,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "commit": commit,
        "cores": str(os.cpu_count()),
    }


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
