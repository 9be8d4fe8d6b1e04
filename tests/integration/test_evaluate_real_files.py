"""Constant answers on the published files: exactly as often right as each letter is the answer.

MINDCYCLE_DATA names the folder that holds them, `mmlu/data/{dev,val,test}` and `ceval/{dev,val}`.
Where they are absent, tests/unit/test_evaluate_suites.py counts by hand on files it writes.
"""

import csv
import os
from pathlib import Path

import pytest

from tests.evaluation import ConstantLM, outcome

DATA = Path(os.environ.get("MINDCYCLE_DATA", Path(__file__).parents[3] / "shared" / "data"))

pytestmark = pytest.mark.skipif(
    not (DATA / "mmlu").is_dir(), reason="MMLU's and C-Eval's files are not here"
)


@pytest.mark.parametrize(
    ("letter", "mmlu", "ceval"),
    [("A", 3222, 310), ("B", 3462, 338), ("C", 3582, 344), ("D", 3776, 354)],
)
def test_constant_answers(letter: str, mmlu: int, ceval: int) -> None:
    found = outcome(
        ConstantLM(letter),
        {"suite": "mmlu", "data": "local", "path": DATA / "mmlu"},
        {"suite": "ceval", "data": "local", "path": DATA / "ceval"},
    ).tasks
    assert (found["mmlu"].correct, found["mmlu"].items) == (mmlu, 14042)
    assert (found["ceval"].correct, found["ceval"].items) == (ceval, 1346)
    assert found["mmlu"].macro == pytest.approx(macro(DATA / "mmlu/data/test", letter))
    assert found["ceval"].macro == pytest.approx(macro(DATA / "ceval/val", letter))
    assert 0.0035 < (found["mmlu"].micro_stderr or 0) < 0.0038
    assert 0.0114 < (found["ceval"].micro_stderr or 0) < 0.0121
    assert {name: group.n for name, group in found["mmlu"].groups.items()} == {
        "Humanities": 4705,
        "Other": 3107,
        "STEM": 3153,
        "Social Sciences": 3077,
    }
    assert sum(group.n for group in found["ceval"].groups.values()) == 1346


def macro(folder: Path, letter: str) -> float:
    """Mean over files of the share of rows whose last column is the letter; no code of ours."""
    shares = []
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            answers = [cells[-1] for cells in csv.reader(file) if cells[-1] != "answer"]
        shares.append(answers.count(letter) / len(answers))
    return sum(shares) / len(shares)
