"""Which files a path or a glob of a config means."""

import glob
from pathlib import Path


def files_fitting(pattern: str) -> list[Path]:
    """The files, in order; the file of that very name, if there is one: names may hold brackets."""
    if Path(pattern).is_file():
        return [Path(pattern)]
    found = (Path(name) for name in glob.glob(pattern, recursive=True))
    return sorted(path for path in found if path.is_file())
