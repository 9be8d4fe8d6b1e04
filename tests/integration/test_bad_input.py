"""Wrong input, case by case: a sentence, the right exit code, nothing lost, nothing left behind."""

from pathlib import Path

import pytest

from tests.bad_input import bench as benches
from tests.bad_input.case import Case
from tests.bad_input.cases import CASES, rows
from tests.command import ROOT


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(case: Case, tmp_path: Path) -> None:
    benches.build(tmp_path)
    bench = benches.Bench(tmp_path)
    for spoil in case.spoil:
        spoil(bench)
    command = case.command(bench)
    before = bench.contents()
    ran = bench.run(command)
    said = ran.stdout + ran.stderr
    assert ran.returncode == case.code, said
    assert "Traceback" not in said
    for words in case.says:
        assert words.replace("{root}", str(tmp_path)) in said
    assert len(ran.stderr.splitlines()) <= 26, said
    assert bench.contents() == before


@pytest.mark.parametrize("stage", ["corpus", "gate", "gate_bundle", "release"])
def test_what_is_spoiled_is_right_at_first(stage: str, tmp_path: Path) -> None:
    """Shown for the stages that are quick; the others' requests are the same but for the engine."""
    benches.build(tmp_path)
    bench = benches.Bench(tmp_path)
    before = bench.contents()
    ran = bench.run(bench.stage(stage))
    assert ran.returncode == 0, ran.stderr
    assert before.items() < bench.contents().items()


def test_each_case_stands_in_the_documentation() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs").glob("reliability*.md"))
    missing = [row for _, row in rows() if row not in pages]
    assert missing == [], "`python -m tests.bad_input.cases` prints the tables"
    assert len({case.name for case in CASES}) == len(CASES)
