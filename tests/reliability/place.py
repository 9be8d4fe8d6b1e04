"""A store in which a lifecycle has come up to some step, and the command that goes on from there.

Faults come from outside: signals to the processes, a disk that fills up, files that change.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from artifacts.manifest import MANIFEST, problems_with_files, read_manifest
from tests.command import MINDCYCLE, ROOT, environment, processes_about

RUN = ROOT / "tests" / "reliability" / "run.yaml"
STEPS = (
    "corpus",
    "pretrain",
    "convert",
    "evaluate-base",
    "finetune",
    "merge",
    "evaluate-tuned",
    "gate",
    "export",
    "prove",
    "evaluate-bundle",
    "gate-bundle",
    "release",
)
GONE_SECONDS = 10.0
"""What is told to end has 8 s for its last words; then it is killed."""


@dataclass(frozen=True)
class Place:
    """One store of the run in run.yaml."""

    store: Path
    where: Mapping[str, str]
    """Step -> its artifact's directory, relative to the store."""

    def artifact(self, step: str) -> Path:
        """Where the step's artifact is, or will be."""
        return self.store / self.where[step]

    def work(self, step: str) -> Path:
        """Where it is written."""
        final = self.artifact(step)
        return final.with_name(f".{final.name}.partial")

    def digest(self, step: str) -> str:
        """Its content digest; every byte is compared with the manifest before."""
        manifest = read_manifest(self.artifact(step))
        assert problems_with_files(self.artifact(step), manifest) == []
        return manifest.digest

    def up_to(self, step: str, store: Path) -> "Place":
        """A copy of this finished store in which `step` and what follows is not there yet."""
        place = Place(Path(shutil.copytree(self.store, store)), self.where)
        shutil.rmtree(store / "logs")
        for later in STEPS[STEPS.index(step) :]:
            shutil.rmtree(place.artifact(later))
        return place

    def command(self, step: str | None, *more: str) -> list[str]:
        """The command line up to a step, or of the whole lifecycle."""
        what = ["stage", step] if step else ["run"]
        prefect = [] if "--prefect" in more else ["--no-prefect"]
        more = tuple(part for part in more if part != "--prefect")
        return [*what, str(RUN), *prefect, "--verbose", "--store", str(self.store), *more]

    def start(self, step: str | None, *more: str, **how: object) -> "Running":
        """Start it."""
        return Running(self.command(step, *more), self.store, **how)  # type: ignore[arg-type]

    def run(self, step: str | None, *more: str, code: int = 0, **how: object) -> str:
        """Run it to its end; returns all it said."""
        running = self.start(step, *more, **how)
        said = running.end()
        assert running.process.returncode == code, said
        return said

    def nothing_half_is_taken_for_whole(self) -> None:
        """Whatever stands under a final name can be trusted."""
        for path in self.store.glob("*/*"):
            if path.parent.name != "logs" and path.is_dir() and not path.name.startswith("."):
                assert problems_with_files(path, read_manifest(path)) == []

    def nothing_is_left_over(self, step: str) -> None:
        """Beside the finished artifact stand only the locks, which are empty files."""
        kind = self.artifact(step).parent
        assert not self.work(step).exists()
        hidden = [path for path in kind.iterdir() if path.name.startswith(".")]
        assert [path for path in hidden if path.suffix != ".lock" or path.stat().st_size] == []
        held = {entry.path for entry in read_manifest(self.artifact(step)).files}
        assert [name for name in held if "/." in f"/{name}" or name.endswith(".tmp")] == []
        assert (self.artifact(step) / MANIFEST).is_file()


class Running:
    """A `mindcycle` that goes on, in a session of its own as on a terminal of its own."""

    def __init__(
        self,
        arguments: list[str],
        store: Path,
        changes: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        before: tuple[str, ...] = (),
    ):
        self.store = store
        self._file = store.with_name(f"{store.name}.{time.monotonic_ns()}.said")
        self._family: dict[int, psutil.Process] = {}
        self._stages: list[psutil.Process] = []
        with self._file.open("wb") as file:
            self.process = subprocess.Popen(
                [*before, *MINDCYCLE, *arguments],
                cwd=ROOT,
                env=environment(PYTHONUNBUFFERED="1", OMP_NUM_THREADS="2", **(changes or {})),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=prepare,
                start_new_session=True,
            )

    def said(self) -> str:
        """All it has said so far."""
        return self._file.read_text(encoding="utf-8", errors="replace")

    def end(self, seconds: float = 1500) -> str:
        """Wait until it ends by itself; returns all it said."""
        self.process.wait(seconds)
        return self.said()

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self.process.poll() is not None

    def wait_for(self, condition: Callable[[], object], seconds: float = 1500) -> bool:
        """Return when the condition holds: True, or False if the process ended before that."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.ended():
                return bool(condition())
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.002)
        return True

    def family(self) -> list[psutil.Process]:
        """Every process it has started and that was ever seen here, and itself."""
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            for one in (top, *top.children(recursive=True)):
                self._family[one.pid] = one
        return list(self._family.values())

    def stages(self) -> list[psutil.Process]:
        """The processes of the stage that goes on: the one that leads, and its ranks if any."""
        found = self._stages = []
        for one in self.family():
            with suppress(psutil.NoSuchProcess):
                if one.cmdline()[1:2] == ["-m"] and one.cmdline()[2].startswith("stages."):
                    found.append(one)
        return found

    @contextmanager
    def frozen(self) -> Iterator[list[psutil.Process]]:
        """The stage's processes stand still, so that what is done to them happens right here."""
        for one in self._stages:  # at once; to look for more takes milliseconds
            _suspend(one)
        for one in self.stages():
            _suspend(one)
        yield self._stages
        self.go_on()

    def go_on(self) -> None:
        """The stage's processes are let go again."""
        for one in self.stages():
            with suppress(psutil.NoSuchProcess):
                one.resume()

    def signal(self, number: int) -> None:
        """Send it a signal as a terminal or a service manager does, and see all of it go."""
        self.family()
        begin = time.monotonic()
        self.process.send_signal(number)
        time.sleep(0.3)  # it has been passed on by now, and is the first that a frozen stage sees
        self.go_on()
        self.all_gone(begin)

    def kill(self, who: str) -> None:
        """kill -9 the stage's processes, `mindcycle` alone, or everything at the same time."""
        chosen = {"stage": self.stages, "all": self.family}.get(
            who, lambda: [psutil.Process(self.process.pid)]
        )()
        assert chosen
        for one in chosen:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self.go_on()
        self.all_gone(time.monotonic())

    def all_gone(self, begin: float) -> None:
        """Wait until no process of it is left, at most `GONE_SECONDS` after `begin`."""
        while self.alive() and time.monotonic() - begin < GONE_SECONDS:
            self.ended()
            time.sleep(0.01)
        assert self.alive() == [], self.said()
        assert self.ended()

    def alive(self) -> list[str]:
        """Its processes that are there, and any other that names its store."""
        found = []
        for one in self._family.values():
            with suppress(psutil.NoSuchProcess):
                if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(one.cmdline()))
        return found + processes_about(str(self.store))

    def cleanup(self) -> None:
        """Leave nothing behind, whatever the test has come to."""
        for one in self.family():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


def interrupt(
    place: Place,
    step: str,
    sight: str,
    strike: Callable[[Running], object],
    *more: str,
    changes: Mapping[str, str] | None = None,
    ends: bool = False,
    tries: int = 12,
    start: "Callable[[], Running] | None" = None,
) -> Running:
    """Run up to `step` and `strike` when a file `sight` appears or changes in its work directory.

    `sight` is a pattern; with a + at its end the file must hold something. The stage stands still
    while `strike` begins. If it was quicker than the watcher, what it has done is undone and it is
    run again: what is asked for is a strike right there. After it the artifact may be there only if
    `ends`. `start` starts it in another way than as a command.
    """
    work, final = place.work(step), place.artifact(step)
    kept = work.with_name(f"{work.name}.kept")
    if work.exists():
        shutil.copytree(work, kept)
    before = _seen(work, sight)
    for _ in range(tries):
        running = start() if start else place.start(step, *more, changes=changes)
        try:
            running.wait_for(lambda: work.exists() and running.stages())  # noqa: B023
            while running.wait_for(lambda: _seen(work, sight) - before or final.exists()):
                with running.frozen() as still:
                    if still and _seen(work, sight) - before and not final.exists():
                        strike(running)
                        shutil.rmtree(kept, ignore_errors=True)
                        assert ends or not final.exists()
                        return running
                if final.exists():
                    break
            else:
                raise AssertionError(running.said())
        finally:
            running.cleanup()
        for path in (work, final):
            shutil.rmtree(path, ignore_errors=True)
        if kept.exists():
            shutil.copytree(kept, work)
    raise AssertionError(f"{step} was always quicker than the watcher")


def _suspend(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.suspend()


def _seen(work: Path, sight: str) -> set[tuple[Path, int, int]]:
    found = set()
    for path in work.glob(sight.removesuffix("+")):
        with suppress(FileNotFoundError):
            about = path.stat()
            if about.st_size or not sight.endswith("+"):
                found.add((path, about.st_size, about.st_mtime_ns))
    return found
