"""Wrong input, case by case: a sentence, the right exit code, nothing lost, nothing left behind."""

from pathlib import Path

import pytest

from tests.bad_input import bench as benches
from tests.bad_input.case import Case
from tests.bad_input.cases import CASES


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
