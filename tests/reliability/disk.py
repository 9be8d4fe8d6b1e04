"""A small disk that can be filled: a tmpfs where one can be mounted.

Where it cannot, and in one case anywhere, the system refuses to let a file grow (RLIMIT_FSIZE, what
`ulimit -f` and quotas do), which is set from outside as well.
"""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.reliability.place import Running


@contextmanager
def small_disk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """A new folder, and whether it is a small disk of its own."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    yield folder, mounted
    if mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: tuple[Path, bool], left: int) -> Path:
    """Leave `left` bytes on the small disk; returns the file that takes the rest."""
    ballast = disk[0] / "ballast"
    free = os.statvfs(disk[0])
    with ballast.open("wb") as file:
        file.write(b"\0" * (free.f_bavail * free.f_frsize - left))
    return ballast


def limit_files(running: Running, size: int) -> None:
    """No file of the stage may grow beyond `size` bytes from now on."""
    for one in running.stages():
        one.rlimit(resource.RLIMIT_FSIZE, (size, size))
