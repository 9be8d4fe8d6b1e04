"""One stage as a process: skipped if its artifact is there, else run under the supervisor.

Nothing of a stage runs in this process; it only knows the stage's config and what it makes.
"""

import collections
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.errors import REJECTED, BadInput, StageFailed, said_of
from artifacts.manifest import Manifest, read_manifest
from artifacts.store import prepare_store
from stages.plan import Planned, plan
from stages.spec import Request, StageSpec

if TYPE_CHECKING:
    from artifacts.remote import Remote

SUPERVISOR = Path(__file__).with_name("supervisor.py")
TAIL_LINES = 40
MAX_LINE = 1 << 16
"""Bytes of one output line that are kept together."""
STOP_SECONDS = 10.0
"""How long an ending stage may take; the supervisor gives it 8 and then kills."""

OnLine = Callable[[str], None]
"""Called with every line the stage prints."""


@dataclass(frozen=True)
class StageOutcome:
    """A stage's whole artifact, made just now or found."""

    manifest: Manifest
    path: Path
    skipped: bool
    rejected: bool
    seconds: float
    log: Path | None
    """Everything the stage printed; None if it did not run."""


def run_stage(
    spec: StageSpec,
    request: Request,
    on_line: OnLine,
    log: Path,
    *,
    claim: Callable[[Path], None] = lambda artifact: None,
    remote: "Remote | None" = None,
    check_inputs: bool = True,
) -> StageOutcome:
    """Run one stage, or find its work done, here or in `remote`, which gets what is made here.

    `log` gets everything it prints.

    `claim` is told where the artifact stands or will stand, before anyone looks whether it does.
    `check_inputs=False` is for inputs whose bytes were compared with their manifests just now.
    Raises BadInput (nothing was done) or StageFailed with the last lines of the log.
    """
    begin = time.monotonic()
    planned = plan(spec, request, check_inputs=check_inputs)
    if not Path(request.store).exists():
        prepare_store(Path(request.store))
    claim(planned.final)
    manifest = planned.finished()
    if manifest is None and remote is not None:
        remote.fetch(spec.makes, planned.identity, Path(request.store), on_line)
        manifest = planned.finished()
    skipped = manifest is not None
    if manifest is None:
        prepare_store(Path(request.store))
        _run_process(planned, request, on_line, log)
        manifest = read_manifest(planned.final)
    if remote is not None:
        remote.push(planned.final, on_line)
    return StageOutcome(
        manifest=manifest,
        path=planned.final,
        skipped=skipped,
        rejected=spec.exit_code(manifest) == REJECTED,
        seconds=time.monotonic() - begin,
        log=None if skipped else log,
    )


def stage_command(spec: StageSpec, request_file: Path) -> list[str]:
    """The command that runs a stage: the package its config stands in, as a module."""
    package = spec.config.__module__.rpartition(".")[0]
    return [sys.executable, "-m", package, str(request_file)]


def _run_process(planned: Planned, request: Request, on_line: OnLine, log: Path) -> None:
    spec = planned.spec
    request_file = log.with_suffix(".request.json")
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(request), indent=1, ensure_ascii=False) + "\n"
        request_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"store: {said_of(error, request_file)}") from None
    tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)

    def keep(line: str) -> None:
        tail.append(line)
        on_line(line)

    code = run_supervised(stage_command(spec, request_file), keep, log)
    if code in (0, REJECTED):
        return
    if code == BadInput.exit_code:
        raise BadInput(*_problems(spec.name, tail))
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was ended together with its supervisor, by signal {-code}"
    if code > 128:
        how = f"was ended by signal {code - 128}"
    if code == 128 + 9:
        how += " (the system does that when memory runs out)"
    raise StageFailed("\n".join([f"{spec.name} {how}; its whole log is {log}", *tail]))


def _problems(name: str, tail: "collections.deque[str]") -> list[str]:
    """A stage's sentences about its input: what it printed last, from its own name on."""
    lines = list(tail)
    for i in reversed(range(len(lines))):
        if lines[i].startswith(f"{name}: "):
            return [lines[i].removeprefix(f"{name}: "), *lines[i + 1 :]]
    return lines or [f"{name}: refused its input without a word"]


def run_supervised(
    command: list[str],
    on_line: OnLine,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command under the supervisor until it and all its processes are gone.

    Returns its exit code. Whatever ends this function early (Ctrl-C, a cancelled flow) ends the
    command too, and then goes on upwards. A log that cannot be written, on a full disk, ends
    nothing: what the command says of itself is worth more.
    """
    file = log.open("ab", buffering=0)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Whoever kills this process's group must not hit the supervisor, which cleans up then.
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "DO_NOT_TRACK": "1", **(environment or {})},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with file:

        def write(data: bytes) -> None:
            with contextlib.suppress(OSError):
                file.write(data)

        try:
            _follow(process, write, on_line)
            return process.wait()
        except BaseException:
            _stop(process, write)
            raise
        finally:
            # The supervisor takes the closed pipe as the end, should anything above have failed.
            process.stdin.close()
            process.stdout.close()


def _follow(
    process: "subprocess.Popen[bytes]", write: Callable[[bytes], object], on_line: OnLine
) -> None:
    assert process.stdout is not None
    while raw := process.stdout.readline(MAX_LINE):
        write(raw)
        # A progress bar redraws its line after a carriage return: what stands last counts.
        line = raw.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
        if line:
            on_line(line)


def _stop(process: "subprocess.Popen[bytes]", write: Callable[[bytes], object]) -> None:
    """End the command: it may write down what it has, then everything of it is killed."""
    process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.poll() is None and time.monotonic() < deadline:
        # Its last words; unread, they would fill the pipe and hold it up.
        if raw := process.stdout.read(MAX_LINE):
            write(raw)
        time.sleep(0.02)
