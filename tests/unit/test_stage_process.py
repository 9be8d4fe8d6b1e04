"""The one way every stage runs, shown with a stage that copies a file."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from artifacts.errors import BadInput, StageFailed
from artifacts.manifest import read_manifest
from stages.plan import plan
from stages.process import execute
from stages.spec import Input, Job, Request, StageConfig, StageSpec


class CopyConfig(StageConfig):
    source: Path
    times: int = 1
    seed: int = 0

    def source_files(self) -> list[Path]:
        return [self.source]

    def seeds(self) -> dict[str, int]:
        return {"copy": self.seed}


SPEC = StageSpec("copy", "corpus", CopyConfig, {}, code_version=1)
AFTER = StageSpec("after", "checkpoint", StageConfig, {"corpus": Input(("corpus",))}, 1)


def copy(job: Job) -> dict:
    (job.work / "copy").write_bytes(job.config.source.read_bytes() * job.config.times)
    return {"times": job.config.times}


def never(job: Job) -> dict:
    raise AssertionError("this work was already done")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("text")
    return path


def request_for(tmp_path: Path, source: Path, **config) -> Request:
    return Request("copy", {"source": str(source), **config}, {}, str(tmp_path / "store"))


def test_the_result_is_an_artifact_and_is_not_made_twice(tmp_path: Path, source: Path) -> None:
    request = request_for(tmp_path, source, seed=3)
    manifest = execute(SPEC, copy, request)
    path = plan(SPEC, request).final
    assert (path / "copy").read_text() == "text"
    assert manifest == read_manifest(path)
    assert manifest.seeds == {"copy": 3}
    assert manifest.sources[0].path == str(source)
    assert execute(SPEC, never, request) == manifest


def test_identity_follows_config_source_and_code_but_not_the_path_of_the_store(
    tmp_path: Path, source: Path
) -> None:
    first = plan(SPEC, request_for(tmp_path, source)).identity
    moved = Request("copy", {"source": str(source)}, {}, str(tmp_path / "elsewhere"))
    assert plan(SPEC, moved).identity == first
    assert plan(SPEC, request_for(tmp_path, source, times=2)).identity != first
    newer = StageSpec("copy", "corpus", CopyConfig, {}, code_version=2)
    assert plan(newer, request_for(tmp_path, source)).identity != first
    source.write_text("text2")
    assert plan(SPEC, request_for(tmp_path, source)).identity != first


def test_a_failure_leaves_nothing_under_the_final_name(tmp_path: Path, source: Path) -> None:
    def fails(job: Job) -> dict:
        (job.work / "half").write_text("half")
        raise OSError(28, "No space left on device")

    request = request_for(tmp_path, source)
    with pytest.raises(StageFailed, match=r"partial: No space"):
        execute(SPEC, fails, request)
    assert not plan(SPEC, request).final.exists()
    execute(SPEC, copy, request)
    assert sorted(p.name for p in plan(SPEC, request).final.iterdir()) == ["copy", "manifest.json"]


def test_a_stage_that_resumes_finds_its_work(tmp_path: Path, source: Path) -> None:
    resuming = StageSpec("copy", "corpus", CopyConfig, {}, 1, resumes=True)

    def first(job: Job) -> dict:
        (job.work / "part").write_text("1")
        raise OSError(28, "No space left on device")

    def second(job: Job) -> dict:
        assert (job.work / "part").read_text() == "1"
        return {}

    request = request_for(tmp_path, source)
    with pytest.raises(StageFailed, match=r"partial: No space"):
        execute(resuming, first, request)
    execute(resuming, second, request)


def test_a_tampered_result_is_refused_by_its_own_stage_and_the_next(
    tmp_path: Path, source: Path
) -> None:
    request = request_for(tmp_path, source)
    execute(SPEC, copy, request)
    final = plan(SPEC, request).final
    after = Request("after", {}, {"corpus": str(final)}, request.store)
    plan(AFTER, after)
    (final / "copy").write_text("texT")
    with pytest.raises(BadInput, match="copy: has changed"):
        execute(SPEC, never, request)
    with pytest.raises(BadInput, match="copy: has changed"):
        plan(AFTER, after)


def test_all_problems_are_said_at_once(tmp_path: Path, source: Path) -> None:
    with pytest.raises(BadInput) as caught:
        plan(SPEC, request_for(tmp_path, source, times="x", seed=[], more=1))
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "copy.times: is 'x'; input should be a valid integer" in text
    assert "copy.more: is no known key" in text

    wrong = Request("after", {}, {"model": "/nowhere"}, str(tmp_path))
    with pytest.raises(BadInput) as caught:
        plan(AFTER, wrong)
    assert "inputs.model: after takes no such input" in str(caught.value)
    assert "inputs.corpus: is missing" in str(caught.value)

    model = execute(SPEC, copy, request_for(tmp_path, source))
    assert model.kind == "corpus"
    wrong_kind = StageSpec("last", "decision", StageConfig, {"corpus": Input(("adapter",))}, 1)
    path = plan(SPEC, request_for(tmp_path, source)).final
    with pytest.raises(BadInput, match="is of kind corpus, last needs adapter"):
        plan(wrong_kind, Request("last", {}, {"corpus": str(path)}, str(tmp_path)))


PROGRAM = """
import sys, time
from pathlib import Path
from stages.process import main
from stages.spec import StageConfig, StageSpec

class SlowConfig(StageConfig):
    seconds: float = 0
    hungry: bool = False

def run(job):
    (job.work / "begun").write_text("")
    if job.config.hungry:
        raise MemoryError("Unable to allocate 11.6 TiB")
    time.sleep(job.config.seconds)
    return {"outcome": "rejected"}

main(StageSpec("slow", "decision", SlowConfig, {}, 1, exit_code=lambda manifest: 3), run)
"""


def start(tmp_path: Path, request: object) -> subprocess.Popen:
    (tmp_path / "request.json").write_text(
        request if isinstance(request, str) else json.dumps(request)
    )
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "request.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )


def slow(tmp_path: Path, **config) -> dict:
    return {"stage": "slow", "config": config, "inputs": {}, "store": str(tmp_path / "store")}


def test_exit_code_of_a_whole_artifact_is_the_stages_own(tmp_path: Path) -> None:
    for said in ("wrote", "done already"):
        process = start(tmp_path, slow(tmp_path))
        out, _ = process.communicate()
        assert process.returncode == 3
        assert said in out


@pytest.mark.parametrize(
    ("request_text", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "request: "),
        ('{"stage": "slow"}', "request.config: is required"),
        ('{"stage": "slow", "config": {"x": 1}, "inputs": {}, "store": "s"}', "slow.x: is no"),
        ('{"stage": "slow", "config": {}, "inputs": {}, "store": "/proc/x"}', "store: /proc/x"),
    ],
)
def test_a_bad_request_ends_with_a_sentence_and_exit_2(
    tmp_path: Path, request_text: str, says: str
) -> None:
    process = start(tmp_path, request_text)
    out, err = process.communicate()
    assert process.returncode == 2
    assert says in err
    assert "Traceback" not in out + err


def test_too_little_memory_is_a_sentence(tmp_path: Path) -> None:
    process = start(tmp_path, slow(tmp_path, hungry=True))
    out, err = process.communicate()
    assert process.returncode == 1
    assert "slow: memory does not suffice: Unable to allocate 11.6 TiB" in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_soon_and_leaves_nothing_whole(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, slow(tmp_path, seconds=60))
    while not list((tmp_path / "store").glob("decision/.*.partial/begun")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert "goes on from here" in err
    assert not list((tmp_path / "store").glob("decision/*/manifest.json"))


def test_two_at_once_work_once(tmp_path: Path) -> None:
    both = [start(tmp_path, slow(tmp_path, seconds=1)) for _ in range(2)]
    outs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [3, 3]
    assert sorted("wrote" in out for out in outs) == [False, True]
    assert sum("another process is at this; waiting" in out for out in outs) == 1
