"""What running processes use of a store, so that `mindcycle gc` takes nothing away from under them.

A process that uses artifacts holds `<store>/.claims/<its name>` locked for as long as it lives, and
writes into it what it uses. The lock dies with the process, so a kill leaves no claim behind. A
claim is made under a shared lock on `<store>/.gc.lock`, which gc holds alone while it reads
claims and moves artifacts away: a claim comes before that, and is heeded, or after, and finds none.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, get_args

from artifacts.errors import BadInput
from artifacts.manifest import Kind

FOLDER = ".claims"
SWEEPING = ".gc.lock"


class Claims:
    """The artifacts that this process uses, in whatever stores they stand."""

    def __init__(self, name: str) -> None:
        self._name = f"{socket.gethostname()}-{name}"
        self._files: dict[Path, IO[str]] = {}

    def add(self, artifact: Path) -> None:
        """Claim the directory of an artifact, whether it is there or will be made there.

        In a store that cannot be written nothing is claimed: nothing can be removed there either.
        """
        place = artifact.absolute()
        if place.parent.name not in get_args(Kind):
            return  # a directory that stands in no store
        store = place.parent.parent
        with contextlib.suppress(OSError, ValueError), _sweeping(store, fcntl.LOCK_SH):
            file = self._files.get(store) or self._open(store)
            file.write(f"{place.parent.name}/{place.name}\n")
            file.flush()

    def release(self) -> None:
        """Give all of it up."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            file.close()
        self._files.clear()

    def _open(self, store: Path) -> IO[str]:
        (store / FOLDER).mkdir(exist_ok=True)
        file = (store / FOLDER / self._name).open("w", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        self._files[store] = file
        return file


@contextlib.contextmanager
def claims(name: str) -> Iterator[Claims]:
    """Claims that end with the block. `name` is unlike that of every other on this machine."""
    made = Claims(name)
    try:
        yield made
    finally:
        made.release()


@contextlib.contextmanager
def no_new_claims(store: Path) -> Iterator[set[str]]:
    """Inside, nothing more is claimed; yields what is: `kind/name` of each artifact.

    Waits for claims that are being made, an instant. Raises BadInput if the store cannot be
    written.
    """
    try:
        with _sweeping(store, fcntl.LOCK_EX):
            yield set().union(*map(_claimed, sorted((store / FOLDER).glob("*"))))
    except PermissionError as error:
        raise BadInput(f"store: {store} cannot be written: {error.strerror}") from None


def _claimed(path: Path) -> set[str]:
    """What a claims file names; one whose process is gone is removed."""
    try:
        with path.open("r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return set(file.read().splitlines())
            path.unlink()
    except FileNotFoundError:  # given up just now
        pass
    return set()


@contextlib.contextmanager
def _sweeping(store: Path, how: int) -> Iterator[None]:
    with (store / SWEEPING).open("a") as file:
        fcntl.flock(file, how)
        yield
