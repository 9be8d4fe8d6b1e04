"""Two trainings never share cores: they take turns on a machine, with Prefect or without it.

A lock on a file of this user and this machine, which dies with its process. Prefect's limits live
in one server's database, and know nothing of a run from the command line.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from artifacts.errors import BadInput
from artifacts.validation import shown

AT_ONCE = "MINDCYCLE_TRAININGS"
"""Environment variable: how many trainings go on at once on this machine. Default 1."""
LOOK_SECONDS = 1.0


@contextlib.contextmanager
def turn(name: str) -> Iterator[None]:
    """Wait until fewer trainings than allowed go on here, then count as one.

    Says once that it waits. Raises BadInput if the environment variable is no number.
    """
    at_once, said = _at_once(), False
    with _kept(_folder()) as folder:
        while True:
            for i in range(at_once):
                with (folder / f"training-{i}.lock").open("a") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield
                    return
            if not said:
                print(f"{name}: another training has this machine's cores; waiting", flush=True)
                said = True
            time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[Path]:
    """The folder, locked as systemd-tmpfiles asks of what it shall not clean up by age."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield folder
    finally:
        os.close(held)


def _at_once() -> int:
    text = os.environ.get(AT_ONCE, "1")
    if not (text.isdecimal() and int(text) > 0):
        raise BadInput(f"{AT_ONCE}: is {shown(text)}; a number of trainings, 1 or more")
    return int(text)


def _folder() -> Path:
    """A folder of this user on this machine, the same for a login, a cron job and a service.

    A home may be shared by several machines; a session's runtime directory is that session's own.
    """
    folder = Path(tempfile.gettempdir()) / f"mindcycle-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BadInput(f"{folder}: belongs to somebody else; remove it, or set TMPDIR")
    return folder
