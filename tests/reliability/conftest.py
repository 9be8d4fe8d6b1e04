"""The one run that nobody disturbs; all others start from copies of it and must end like it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.reliability.disk import small_disk
from tests.reliability.place import STEPS, Place

LINE = re.compile(r"^(\S+) +[a-z-]+ +[0-9a-f]{16} +(/\S+)$", re.MULTILINE)
"""A step's line in the summary of a run: step, kind, digest, directory."""


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The finished lifecycle."""
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    said = Place(store, {}).run(None)
    found = {step: str(Path(path).relative_to(store)) for step, path in LINE.findall(said)}
    assert tuple(found) == STEPS, said
    return Place(store, found)


@pytest.fixture
def before(whole: Place, tmp_path: Path) -> Callable[[str], Place]:
    """A copy of the store in which a step and what follows it has not been done."""

    def copy(step: str) -> Place:
        return whole.up_to(step, tmp_path / "store")

    return copy


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, bool]]:
    """A folder, and whether it is a small disk of its own."""
    with small_disk(tmp_path / "disk") as made:
        yield made
