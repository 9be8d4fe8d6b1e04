"""The suites through lm-eval: constant answers by hand and on the real files, prompts, limits."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from artifacts.errors import BadInput
from stages.evaluate.lm import EngineLM
from stages.evaluate.text import TextCodec
from tests.evaluation import (
    GREEDY,
    ConstantLM,
    NumpyBackend,
    outcome,
    row,
    rows,
    write_ceval,
    write_mmlu,
    write_tokenizer,
    write_world,
)


@pytest.mark.parametrize(
    ("letter", "mmlu", "ceval"), [("A", 2, 1), ("B", 1, 1), ("C", 4, 0), ("D", 1, 2)]
)
def test_constant_answers_by_hand(tmp_path: Path, letter: str, mmlu: int, ceval: int) -> None:
    write_mmlu(tmp_path / "m", "test", {"anatomy": rows("CCAC"), "virology": rows("DBAC")})
    write_ceval(tmp_path / "c", "val", {"law": rows("DDA"), "physician": rows("B")})
    found = outcome(
        ConstantLM(letter),
        {"suite": "mmlu", "data": "local", "path": tmp_path / "m"},
        {"suite": "ceval", "data": "local", "path": tmp_path / "c"},
    )
    scores = found.tasks
    assert (scores["mmlu"].correct, scores["mmlu"].items) == (mmlu, 8)
    assert (scores["ceval"].correct, scores["ceval"].items) == (ceval, 4)
    assert scores["mmlu"].answer_counts == {one: 8 * (one == letter) for one in "ABCD"}
    law = scores["ceval"].subjects["law"].acc
    physician = scores["ceval"].subjects["physician"].acc
    assert scores["ceval"].macro == pytest.approx((law + physician) / 2)
    assert found.results["groups"]["mmlu"]["acc,none"] == pytest.approx(scores["mmlu"].micro)


LETTERS_EN = "\nA. one\nB. two\nC. three\nD. four\nAnswer:"
LETTERS_ZH = "\nA. one\nB. two\nC. three\nD. four\n答案："


def prompt(folder: Path, **changes: Any) -> str:
    model = ConstantLM("A")
    outcome(model, {"data": "local", "path": folder} | changes)
    return model.prompts[0]


def test_prompts_are_lm_evals(tmp_path: Path) -> None:
    write_mmlu(tmp_path, "test", {"anatomy": [row(" What? ", "A")]})
    write_mmlu(tmp_path, "dev", {"anatomy": rows("BC")})
    write_ceval(tmp_path, "val", {"law": [row("什么？", "A")]})
    write_ceval(tmp_path, "dev", {"law": rows("D")})
    about = "The following are multiple choice questions (with answers) about anatomy.\n\n"
    assert prompt(tmp_path, suite="mmlu") == f"{about}What?{LETTERS_EN}"
    assert prompt(tmp_path, suite="mmlu", num_fewshot=1) == (
        f"{about}Number 0 of what?{LETTERS_EN} B\n\nWhat?{LETTERS_EN}"
    )
    assert prompt(tmp_path, suite="mmlu", form="continuation", num_fewshot=1) == (
        "The following are questions (with answers) about anatomy.\n\n"
        "Question: Number 0 of what?\nAnswer: two\n\nQuestion: What?\nAnswer:"
    )
    assert prompt(tmp_path, suite="ceval", num_fewshot=1) == (
        "以下是中国关于法学的单项选择题，请选出其中的正确答案。\n\n"
        f"Number 0 of what?{LETTERS_ZH} D\n\n什么？{LETTERS_ZH}"
    )
    assert prompt(tmp_path, suite="ceval", form="continuation", num_fewshot=1) == (
        "以下是中国关于法学的问题，请给出正确答案。\n\n"
        "问题：Number 0 of what?\n答案： four\n\n问题：什么？\n答案："
    )


def test_the_world_has_its_own_subjects_groups_and_facts(tmp_path: Path) -> None:
    write_world(tmp_path)
    model = ConstantLM("A")
    found = outcome(
        model,
        {"suite": "mmlu", "data": "world"},
        {"suite": "mmlu", "data": "world", "form": "continuation"},
        {"suite": "ceval", "data": "world", "form": "continuation"},
        corpus=tmp_path,
    )
    letter = found.tasks["world_mmlu"]
    assert (letter.clusters, letter.items) == (2, 4)
    assert {name: group.n for name, group in letter.groups.items()} == {"Land": 2, "Water": 2}
    assert model.prompts[0].startswith(
        "The following are multiple choice questions (with answers) about the crop.\n\n"
    )
    # Fine-tuning's prompts, token by token: nothing stands before them.
    assert "Question: Number 0 of what?\nAnswer:" in model.prompts
    assert "问题：Number 0 of what?\n答案：" in model.prompts
    assert [item.cluster for item in found.items[:2]] == ["fact 0", "fact 1"]
    assert [item.id for item in found.items[:4]] == ["crop/0", "crop/1", "river/0", "river/1"]


def test_the_world_needs_the_corpus(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"tasks.world_mmlu.data: is 'world'; .*role corpus"):
        outcome(ConstantLM("A"), {"suite": "mmlu", "data": "world"})
    with pytest.raises(BadInput, match="was not made from the world"):
        outcome(ConstantLM("A"), {"suite": "mmlu", "data": "world"}, corpus=tmp_path)


def test_limits_take_the_first_questions_of_each_subject(tmp_path: Path) -> None:
    write_mmlu(tmp_path, "test", {"anatomy": rows("ABCDA"), "virology": rows("BB")})
    task = {"suite": "mmlu", "data": "local", "path": tmp_path}
    some = outcome(ConstantLM("A"), task | {"limit": 3})
    assert [item.id for item in some.items] == [
        *(f"anatomy/{i}" for i in range(3)),
        *(f"virology/{i}" for i in range(2)),
    ]
    assert len(outcome(ConstantLM("A"), task | {"limit": 0.5}).items) == 4
    one = outcome(ConstantLM("A"), task | {"subjects": ["virology"]})
    assert one.tasks["mmlu"].subjects.keys() == {"virology"}


def test_too_many_examples_are_refused(tmp_path: Path) -> None:
    for split in ("dev", "test"):
        write_mmlu(tmp_path, split, {"anatomy": rows("AB")})
    with pytest.raises(BadInput, match=r"num_fewshot: is 5, subject anatomy has 2 examples"):
        prompt(tmp_path, suite="mmlu", num_fewshot=5)


def test_saved_datasets_give_the_same_items(tmp_path: Path) -> None:
    write_mmlu(tmp_path / "csv", "test", {"anatomy": rows("ABC"), "virology": rows("D")})
    table = [
        {
            "question": cells[0],
            "subject": subject,
            "choices": cells[1:5],
            "answer": "ABCD".index(cells[5]),
        }
        for subject, letters in (("anatomy", "ABC"), ("virology", "D"))
        for cells in rows(letters)
    ]
    together = datasets.DatasetDict({"test": datasets.Dataset.from_list(table)})
    together.save_to_disk(str(tmp_path / "all"))
    for subject in ("anatomy", "virology"):
        part = [line for line in table if line["subject"] == subject]
        datasets.DatasetDict({"test": datasets.Dataset.from_list(part)}).save_to_disk(
            str(tmp_path / "each" / subject)
        )
    task: dict[str, Any] = {"suite": "mmlu", "name": "m"}
    local = outcome(ConstantLM("B"), task | {"data": "local", "path": tmp_path / "csv"})
    for name in ("all", "each"):
        saved = outcome(ConstantLM("B"), task | {"data": "saved", "path": tmp_path / name})
        assert saved.items == local.items
        assert saved.tasks == local.tasks
    with pytest.raises(BadInput, match=r"holds no dataset written by"):
        outcome(ConstantLM("B"), task | {"data": "saved", "path": tmp_path / "csv"})
    broken = [{"question": "q", "choices": ["1"], "answer": 0}]
    datasets.DatasetDict({"test": datasets.Dataset.from_list(broken)}).save_to_disk(
        str(tmp_path / "broken")
    )
    with pytest.raises(BadInput, match=r"broken test row 0: is .* four choices"):
        outcome(ConstantLM("B"), task | {"data": "saved", "path": tmp_path / "broken"})


def engine(folder: Path, max_positions: int) -> tuple[EngineLM, NumpyBackend]:
    size = write_tokenizer(folder)
    backend = NumpyBackend(size, max_positions)
    return EngineLM(backend, TextCodec(folder), GREEDY, 4), backend


def test_whole_examples_are_dropped_from_the_front_and_counted(tmp_path: Path) -> None:
    write_mmlu(tmp_path, "dev", {"anatomy": [row("First?", "A"), row("Second?", "B")]})
    questions = ["Short?", "Long" + " of" * 12 + "?", "Longest" + " of" * 45 + "?"]
    write_mmlu(tmp_path, "test", {"anatomy": [row(text, "C") for text in questions]})
    task = {"suite": "mmlu", "data": "local", "path": tmp_path, "num_fewshot": 2, "describe": False}
    wide, _ = engine(tmp_path, 500)
    everything = outcome(wide, task)
    assert everything.tasks["mmlu"].truncated_items == 0
    whole = [sample["arguments"][0][0] for sample in everything.samples["mmlu_anatomy"]]
    room = len(wide.tok_encode(whole[0])) + 3  # enough for the short one
    narrow, backend = engine(tmp_path, room)
    found = outcome(narrow, task)
    scores = found.tasks["mmlu"]
    assert (scores.truncated_items, scores.truncated_examples) == (2, 1 + 2)
    cut = [sample["arguments"][0][0] for sample in found.samples["mmlu_anatomy"]]
    assert cut[0] == whole[0]
    assert cut[1] == whole[1][whole[1].index("Second?") :]
    assert cut[2] == questions[2] + LETTERS_EN
    assert scores.prompt_hash != everything.tasks["mmlu"].prompt_hash
    assert max(length for _, length in backend.passes) <= room


def test_questions_too_long_by_themselves(tmp_path: Path) -> None:
    long = "Long" + " of" * 80 + "?"
    write_mmlu(tmp_path, "test", {"anatomy": [row("Short?", "C"), row(long, "D"), row("Q?", "A")]})
    write_mmlu(tmp_path, "test", {"virology": [row(long, "D")]})
    task = {"suite": "mmlu", "data": "local", "path": tmp_path, "describe": False}
    model, _ = engine(tmp_path, 60)
    with pytest.raises(BadInput, match=r"tasks.mmlu: 2 questions are too long .* anatomy/1"):
        outcome(model, task)
    found = outcome(model, task, leave_out=True)
    assert [item.id for item in found.items] == ["anatomy/0", "anatomy/2"]
    assert found.tasks["mmlu"].left_out_items == 2
    assert found.tasks["mmlu"].subjects.keys() == {"anatomy"}
    only = task | {"subjects": ["virology"]}
    with pytest.raises(BadInput, match="every question is too long"):
        outcome(model, only, leave_out=True)


def test_the_prompt_hash_covers_questions_options_and_order(tmp_path: Path) -> None:
    hashes = set()
    for k, table in enumerate(
        [rows("AB"), rows("BA"), list(reversed(rows("AB"))), [row("x?", "A"), row("y?", "B")]]
    ):
        write_mmlu(tmp_path / str(k), "test", {"anatomy": table})
        task = {"suite": "mmlu", "data": "local", "path": tmp_path / str(k)}
        hashes.add(outcome(ConstantLM("A"), task).tasks["mmlu"].prompt_hash)
    assert len(hashes) == 3  # the right answers are no part of the prompt
    for k, options in enumerate((("1", "2", "3", "4"), ("1", "2", "3", "5"))):
        write_mmlu(tmp_path / "o" / str(k), "test", {"anatomy": [row("x?", "A", options)]})
        task = {"suite": "mmlu", "data": "local", "path": tmp_path / "o" / str(k)}
        scores = outcome(ConstantLM("A"), task | {"form": "continuation"}).tasks
        hashes.add(scores["mmlu_continuation"].prompt_hash)
    assert len(hashes) == 5
