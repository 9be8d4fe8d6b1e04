"""The tables of docs/parallel.md say what the files in benchmarks/ say."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/parallel.md").read_text(encoding="utf-8")


def measured(name):
    return json.loads((ROOT / "benchmarks" / name).read_text())


def cells(begin):
    """The cells of the one row of a table that begins so."""
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("size", ["6m", "25m"])
def test_a_step_beside_torch_and_the_floor(size):
    found = measured(f"training-{size}.json")
    speeds = [f"{found[f'{side}_tokens_per_second']:,.0f}" for side in ("ours", "torch", "floor")]
    ratios = [f"{found[f'ours_to_{side}']:.2f}" for side in ("torch", "floor")]
    assert cells(f"{size} (")[1:] == speeds + ratios


def test_a_step_in_layouts():
    for row in measured("layouts-6m.json")["rows"]:
        collectives, exchanges = (
            f"{row[f'{what}_seconds'] * 1e3:.0f} ms" for what in ("collectives", "exchanges")
        )
        speed, overhead = f"{row['tokens_per_second']:,.0f}", f"{row['overhead']:.0%}"
        expected = [str(row["processes"]), speed, overhead, collectives, exchanges]
        assert cells(f"{row['layout']} |")[1:] == expected


def test_where_a_step_goes():
    found = measured("kernels-6m.json")
    for row in found["rows"]:
        expected = [str(row["kernels"]), f"{row['milliseconds']:.0f} ms", f"{row['share']:.0%}"]
        assert cells(f"{row['work']} |")[1:] == expected


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("weights", "weights (56M"),
        ("accumulated", "weights, two"),
        ("mixed", "weights, activations and logits"),
        ("activations", "activations (3M"),
        ("logits", "logits ("),
        ("recomputed", "eight layers computed again"),
    ],
)
def test_memory_as_foretold(shape, words):
    (row,) = (row for row in measured("memory.json")["rows"] if row["shape"] == shape)
    assert cells(words)[1:] == [f"{row['ratio']:.2f}"]
