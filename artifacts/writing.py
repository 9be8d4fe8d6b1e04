"""How an artifact comes to be: written beside its final place, synced, renamed; one writer only."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from artifacts.errors import BadInput


def sync_tree(directory: Path) -> None:
    """fsync every file and folder below `directory`, deepest first, and itself."""
    for root, _, files in os.walk(directory, topdown=False):
        for name in files:
            _sync(Path(root) / name)
        _sync(Path(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(work: Path, final: Path) -> None:
    """Make the directory `work` appear under `final` whole, or not at all.

    Both must lie on one file system. Raises FileExistsError if `final` exists and is not empty.
    """
    sync_tree(work)
    try:
        os.rename(work, final)
    except OSError as error:
        if final.exists():
            raise FileExistsError(f"{final} exists already") from error
        raise
    _sync(final.parent)


def write_file_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextlib.contextmanager
def exclusive(lock: Path, waiting: str = "") -> Iterator[None]:
    """Hold `lock` (created if absent) alone; wait while another process holds it.

    The lock dies with its process, so a kill never leaves one behind. `waiting` is printed once
    if there is something to wait for. Raises BadInput if the place cannot be written.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except OSError as error:
        raise BadInput(f"{lock.parent}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                print(waiting, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
