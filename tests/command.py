"""The command line as users start it: a process, its exit code, and what it printed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINDCYCLE = [sys.executable, "-c", "from flows.cli import main; main()"]


def environment(**changes: str) -> dict[str, str]:
    """This process's, with the project importable and no Prefect server of the outside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    paths = [changes.pop("first_on_path", ""), str(ROOT), kept.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **changes}


def mindcycle(
    *arguments: object, cwd: Path = ROOT, timeout: float = 500, **changes: str
) -> "subprocess.CompletedProcess[str]":
    """Run `mindcycle ARGUMENTS` to its end."""
    return subprocess.run(
        [*MINDCYCLE, *map(str, arguments)],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start_mindcycle(*arguments: object, **changes: str) -> "subprocess.Popen[str]":
    """Start `mindcycle ARGUMENTS`, its output in a pipe."""
    return subprocess.Popen(
        [*MINDCYCLE, *map(str, arguments)],
        cwd=ROOT,
        env=environment(PYTHONUNBUFFERED="1", **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_about(text: str) -> list[str]:
    """Command lines of living processes that name `text`, this one left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found


def without_prefect(folder: Path) -> str:
    """A folder for the front of the path, in which importing Prefect is an error."""
    package = folder / "no_prefect" / "prefect"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('Prefect was imported')\n")
    return str(package.parent)
