"""Any file of the chain changed, cut short or lost: found, and named."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from artifacts.errors import BadInput
from artifacts.lineage import verify_chain
from artifacts.manifest import MANIFEST
from flows.lifecycle import load_work
from stages.plan import plan
from stages.spec import Request
from tests.command import mindcycle
from tests.reliability.fault import Fault, told
from tests.reliability.place import RUN, STEPS, Place

pytestmark = pytest.mark.timeout(1800)
AREA = "Damaged files"


def flip(path: Path) -> None:
    """One bit of the middle byte."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """The second half is gone."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def lose(path: Path) -> None:
    path.unlink()


def damage(name: str, how: Callable[[Path], None], saw: str) -> ParameterSet:
    fault = told(
        AREA,
        f"{name} anywhere in the chain",
        saw=saw,
        lost="that artifact; what it was made from is there",
        went_on="to have it made again",
    )
    return pytest.param(fault, how, id=name)


DAMAGES = [
    damage("a file with one bit changed", flip, "has changed, its sha256 is not the manifest's"),
    damage("a file cut short", cut, "bytes, the manifest says"),
    damage("a missing file", lose, "is missing"),
]


@contextmanager
def damaged(path: Path, how: Callable[[Path], None]) -> Iterator[None]:
    """The file is damaged for a while."""
    data = path.read_bytes()
    how(path)
    try:
        yield
    finally:
        path.write_bytes(data)


def files_of(artifact: Path) -> list[Path]:
    """All its files that hold something, the manifest too."""
    return [path for path in sorted(artifact.rglob("*")) if path.is_file() and path.stat().st_size]


@pytest.fixture(scope="module")
def copy(whole: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The finished store, to be damaged."""
    store = tmp_path_factory.mktemp("damaged") / "store"
    return replace(whole, store=Path(shutil.copytree(whole.store, store)))


@pytest.mark.parametrize(("fault", "how"), DAMAGES)
def test_verify_finds_it_wherever_it_is(
    fault: Fault, how: Callable[[Path], None], copy: Place
) -> None:
    release = copy.artifact("release")
    assert verify_chain(release).problems == []
    files = [path for step in STEPS for path in files_of(copy.artifact(step))]
    assert len(files) > 80
    for path in files:
        with damaged(path, how):
            # A manifest that is not there makes its whole directory no artifact.
            named = path if path.name != MANIFEST or how is not lose else path.parent
            problems = verify_chain(release).problems
            assert any(problem.startswith(f"{named}: ") for problem in problems), path
            if path.name != MANIFEST:
                assert fault.saw in problems[0], path
    assert verify_chain(release).problems == []


@pytest.mark.parametrize(("fault", "how"), DAMAGES)
def test_the_next_stage_finds_it_whatever_it_reads(
    fault: Fault, how: Callable[[Path], None], copy: Place
) -> None:
    work = load_work(RUN, [], copy.store)
    seen = 0
    for step in work.steps:
        inputs = {role: str(copy.artifact(source)) for role, source in step.inputs.items()}
        config = work.configs[step.spec.name].model_dump(mode="json")
        request = Request(step.spec.name, config, inputs, str(copy.store))
        plan(step.spec, request)
        for source in step.inputs.values():
            for path in files_of(copy.artifact(source)):
                with damaged(path, how), pytest.raises(BadInput) as refused:
                    plan(step.spec, request)
                named = path if path.name != MANIFEST or how is not lose else path.parent
                assert f"{named}: " in str(refused.value), (step.name, path)
                seen += 1
    assert seen > 150


@pytest.mark.parametrize(("fault", "how"), DAMAGES)
def test_as_a_user_meets_it(
    fault: Fault, how: Callable[[Path], None], copy: Place, whole: Place
) -> None:
    weights = copy.artifact("merge") / "model.safetensors"
    data = weights.read_bytes()
    how(weights)
    verified = mindcycle("verify", copy.artifact("release"))
    assert verified.returncode == 1
    assert f"WRONG  {weights}: " in verified.stdout
    assert fault.saw in verified.stdout
    refused = copy.run("export", code=2)
    assert f"{weights}: " in refused
    assert fault.saw in refused
    assert f"remove {weights.parent} {fault.went_on}" in refused
    if how is not lose:
        weights.write_bytes(data)
        return
    shutil.rmtree(weights.parent)
    assert "merge: wrote" in copy.run("export")
    assert copy.digest("merge") == whole.digest("merge")
    assert verify_chain(copy.artifact("release")).problems == []
