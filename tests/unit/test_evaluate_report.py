"""The report's files: the same bytes for the same scores, readable by people and by lm-eval."""

import json
import math
from pathlib import Path
from typing import Any

import datasets
import pytest
from lm_eval.utils import make_table
from matplotlib.figure import Figure

from artifacts.eval_report import (
    Conditions,
    EvalReport,
    ScoredModel,
    read_items,
    read_report,
    write_report,
)
from stages.evaluate import page
from stages.evaluate.lm_eval_files import write_lm_eval
from stages.evaluate.page import as_html, as_markdown, write_page
from stages.evaluate.scoring import Outcome
from tests.evaluation import ConstantLM, outcome, rows, write_mmlu, write_world


def write_all(directory: Path, corpus: Path) -> tuple[EvalReport, Outcome]:
    found = outcome(
        ConstantLM("C"),
        {"suite": "mmlu", "data": "world"},
        {"suite": "ceval", "data": "world", "form": "continuation"},
        corpus=corpus,
    )
    report = EvalReport(
        model=ScoredModel(kind="hf-model", identity="1" * 64, digest="2" * 64),
        conditions=Conditions(
            backend="mindspore",
            dtype="float32",
            sampling={"temperature": 0.1, "top_p": 0.95},
            sampling_hash="3" * 64,
            tokenizer_hash="4" * 64,
            lm_eval="0",
            max_length=64,
        ),
        tasks=found.tasks,
    )
    directory.mkdir()
    write_report(directory, report, found.items)
    write_lm_eval(directory / "lm_eval", found.results, found.samples, {"lm_eval_version": "0"})
    write_page(directory, report)
    return report, found


def test_equal_scores_give_equal_bytes(tmp_path: Path) -> None:
    write_world(tmp_path)
    for name in ("one", "two"):
        write_all(tmp_path / name, tmp_path)
    files = sorted(path for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 6 + 1 + 3
    for path in files:
        again = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == again.read_bytes(), path.name
        if path.suffix != ".png":
            assert " at 0x" not in path.read_text(encoding="utf-8")


def test_the_report_reads_back(tmp_path: Path) -> None:
    write_world(tmp_path)
    report, found = write_all(tmp_path / "r", tmp_path)
    assert read_report(tmp_path / "r") == report
    assert read_items(tmp_path / "r") == found.items


def test_lm_evals_files_open_in_lm_evals_and_datasets_tools(tmp_path: Path) -> None:
    write_world(tmp_path)
    write_all(tmp_path / "r", tmp_path)
    results = json.loads((tmp_path / "r/lm_eval/results.json").read_text())
    table = make_table(results)
    assert "crop" in table
    assert "world_mmlu" in make_table(results, "groups")
    samples = datasets.Dataset.from_list(
        [json.loads(line) for line in (tmp_path / "r/lm_eval/samples_world_mmlu_crop.jsonl").open()]
    )
    assert samples[0]["arguments"]["gen_args_2"]["arg_1"] == " C"
    assert samples["acc"] == [0.0, 0.0]
    assert samples[0]["doc"]["question"] == "Number 0 of what?"


def test_the_page_says_what_must_be_known(tmp_path: Path) -> None:
    write_world(tmp_path)
    report, _ = write_all(tmp_path / "r", tmp_path)
    page = as_markdown(report)
    assert (
        "| world_mmlu | letter | 0 | 4 | 25.00 ± 25.00 | 25.00 ± 25.00 | 25 | at chance |" in page
    )
    assert "chosen: A 0 %, B 0 %, C 100 %, D 0 %" in page
    assert "nearly always the same letter" in page
    assert "errors count 2 distinct facts, not 4 questions" in page
    assert "sampling parameters that took part in world_mmlu: none (likelihoods" in page
    assert "temperature 0.1, top_p 0.95" in page
    sampling = {"sampling": {"do_sample": True}}
    drawn = report.conditions.model_copy(update=sampling)
    assert "do_sample true" in as_markdown(report.model_copy(update={"conditions": drawn}))
    assert (tmp_path / "r/scores.png").read_bytes().startswith(b"\x89PNG")


def test_more_questions_make_chance_visible(tmp_path: Path) -> None:
    def says(letters: str) -> Any:
        write_mmlu(tmp_path, "test", {"anatomy": rows(letters)})
        task = {"suite": "mmlu", "data": "local", "path": tmp_path}
        scores = outcome(ConstantLM("C"), task).tasks
        report = EvalReport.model_construct(
            model=ScoredModel(kind="hf-model", identity="1", digest="2", adapter="5" * 64),
            conditions=Conditions(
                backend="b",
                dtype="d",
                sampling={},
                sampling_hash="",
                tokenizer_hash="",
                lm_eval="0",
                max_length=1,
            ),
            tasks=scores,
        )
        return as_markdown(report)

    assert "| above |" in says("C" * 20 + "ABD")
    assert "| below |" in says("A" * 40 + "C")
    assert "| at chance |" in says("ABCD" * 5)
    assert "too few questions to say" in says("C")
    assert "with adapter `5555555555555555`" in says("C")


def test_the_html_page_is_one_file_with_everything_inside(tmp_path: Path) -> None:
    write_world(tmp_path)
    report, _ = write_all(tmp_path / "r", tmp_path)
    html = (tmp_path / "r/report.html").read_text(encoding="utf-8")
    assert html.count("<img ") == 2 == html.count('src="data:image/png;base64,')
    assert "://" not in html
    assert "<td>world_mmlu</td>" in html
    crop = report.tasks["world_mmlu"].subjects["crop"]
    hostile = report.tasks["world_mmlu"].model_copy(
        update={"subjects": {"<script>alert(1)</script>": crop}}
    )
    changed = report.model_copy(update={"tasks": {"world_mmlu": hostile}})
    page = as_html(as_markdown(changed), {})
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_letters_calibration_and_groups_are_on_the_page(tmp_path: Path) -> None:
    write_world(tmp_path)
    report, _ = write_all(tmp_path / "r", tmp_path)
    page = as_markdown(report)
    assert "right: A 25 %, B 25 %, C 25 %, D 25 %" in page
    assert "| group | questions | micro | macro | above chance |" in page
    assert "| Water | 2 | 50.00 ± 50.00 | 50.00 ± 50.00 | +25.0 |" in page
    # Always C with odds e : 1 : 1 : 1, right one time in four.
    sure = math.e / (math.e + 3)
    assert f"calibration error {100 * (sure - 0.25):.1f} points" in page
    assert f"| {100 * sure:.1f} | 4 | 25.0 |" in page


def test_bars_of_all_right_and_the_legend_have_their_own_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path)
    drawn: list[Figure] = []
    monkeypatch.setattr(page, "_png", lambda figure: drawn.append(figure) or b"")
    write_all(tmp_path / "one", tmp_path)
    scores = next(figure for figure in drawn if figure.legends)
    scores.draw_without_rendering()
    (legend,), (axes,) = scores.legends, scores.axes
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert axes.get_ylim()[1] > 100
    assert all(figure.axes[0].get_xlim()[1] > 100 for figure in drawn if figure is not scores)
