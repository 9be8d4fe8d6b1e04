"""Tasks beside the suites: any of lm-eval's over local mirrors, held-out text, a submission."""

import json
import math
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from artifacts.errors import BadInput
from artifacts.eval_report import EvalReport
from stages.evaluate import lm_eval_tasks
from stages.evaluate.asking import Everything, ask_all, build_tasks
from stages.evaluate.checks import read_questions
from stages.evaluate.config import EvaluateConfig, TaskConfig
from stages.evaluate.lm import EngineLM
from stages.evaluate.other_tasks import LmEvalTask, TextTask
from stages.evaluate.page import as_markdown
from stages.evaluate.sources import load_subjects
from stages.evaluate.text import TextCodec
from tests.evaluation import GREEDY, ConstantLM, NumpyBackend, outcome, write_tokenizer
from tests.reports import report_content

HELLASWAG = [
    {
        "ind": i,
        "activity_label": "Cooking",
        "ctx_a": f"A man takes {i} eggs.",
        "ctx_b": "he",
        "ctx": f"A man takes {i} eggs. he",
        "endings": ["breaks them.", "sings.", "sleeps well.", "flies off."],
        "label": str(i % 4),
        "source_id": str(i),
        "split": "val",
        "split_type": "indomain",
    }
    for i in range(8)
]
GSM8K = [
    {"question": f"What is {i} and 1?", "answer": f"So it is.\n#### {i + 1}"} for i in range(9)
]


@pytest.fixture
def lm(tmp_path: Path) -> EngineLM:
    size = write_tokenizer(tmp_path / "model")
    backend = NumpyBackend(size, max_positions=2048)
    return EngineLM(backend, TextCodec(tmp_path / "model"), GREEDY, 4)


def ask(lm: Any, *tasks: dict[str, Any]) -> Everything:
    config = EvaluateConfig.model_validate({"tasks": tasks, "sampling": GREEDY.model_dump()})
    questions = read_questions(config, None)
    return ask_all(lm, config, build_tasks(config, questions), questions)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    for split in ("train", "validation"):
        write_rows(folder / f"Rowan/hellaswag/{split}.jsonl", HELLASWAG)
    (folder / "openai/gsm8k/main").mkdir(parents=True)
    for split in ("train", "test"):
        name = f"openai/gsm8k/main/{split}-00000-of-00001.parquet"
        datasets.Dataset.from_list(GSM8K).to_parquet(str(folder / name))
    return folder


def test_any_task_of_lm_evals_by_name_over_a_local_mirror(lm: EngineLM, mirror: Path) -> None:
    found = ask(
        lm,
        {"task": "hellaswag", "data": "mirror", "path": mirror, "limit": 6},
        {"task": "gsm8k", "data": "mirror", "path": mirror, "num_fewshot": 2, "limit": 3},
    )
    choices, written = found.tasks["hellaswag"], found.tasks["gsm8k"]
    assert (choices.form, choices.metric, choices.items) == ("multiple_choice", "acc", 6)
    assert choices.chance == 0.25
    assert choices.sampling_used == []
    expected = found.results["results"]["hellaswag"]["acc,none"]
    assert choices.micro == pytest.approx(expected)
    assert choices.calibration is not None
    assert (written.form, written.metric) == ("generate_until", "exact_match")
    assert (written.items, written.num_fewshot, written.chance) == (3, 2, 0.0)
    assert written.sampling_used == ["do_sample", "repetition_penalty", "max_tokens", "stop"]
    answers = [item for item in found.items if item.task == "gsm8k"]
    assert all(item.answer is not None for item in answers)
    assert [item.id for item in answers] == ["gsm8k/0", "gsm8k/1", "gsm8k/2"]
    assert len(found.samples["gsm8k"][0]["arguments"][0][0]) > 50


def test_the_index_of_all_tasks_is_not_built(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, folders = lm_eval_tasks.TaskManager, []

    def counting(*args: Any, **how: Any) -> Any:
        folders.append(how.get("include_defaults", True))
        return honest(*args, **how)

    monkeypatch.setattr(lm_eval_tasks, "TaskManager", counting)
    task = {"task": "hellaswag", "data": "mirror", "path": mirror}
    lm_eval_tasks.load(LmEvalTask.model_validate(task))
    assert folders == [False]
    for name in (
        "leaderboard",
        "leaderboard_gpqa_main",
        "mmlu_pro",
        "ceval-valid",
        "arc_challenge",
    ):
        assert lm_eval_tasks._folder(name) is not None, name
    assert lm_eval_tasks._folder("no_such_task") is None


def test_a_task_file_of_the_users_own(lm: EngineLM, tmp_path: Path) -> None:
    own = tmp_path / "own"
    rows = [{"text": f"Number {'of ' * i}what"} for i in range(4)]
    write_rows(own / "data/owner/set/test.jsonl", rows)
    (own / "mine.yaml").write_text(
        "task: my_words\ndataset_path: owner/set\ntest_split: test\n"
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n- metric: word_perplexity\n- metric: bits_per_byte\n"
        "metadata: {version: 2.0}\n"
    )
    task = {"task": str(own / "mine.yaml"), "data": "mirror", "path": own / "data"}
    found = ask(lm, task)
    scores = found.tasks["mine"]
    assert (scores.metric, scores.version, scores.items) == ("bits_per_byte", "2.0", 4)
    expected = found.results["results"]["my_words"]["bits_per_byte,none"]
    assert scores.micro == pytest.approx(expected)
    assert LmEvalTask.model_validate(task).files() == [
        own / "mine.yaml",
        own / "data/owner/set/test.jsonl",
    ]


def test_what_a_task_file_reaches_is_read_by_it(tmp_path: Path) -> None:
    own, data = tmp_path / "own", tmp_path / "mirror/test.jsonl"
    write_rows(data, [{"text": "a"}])
    write_rows(tmp_path / "more/extra.jsonl", [{"text": "b"}])
    for name, text in {
        "own/mine.yaml": "include: [../shared/base_yaml]\nprocess_docs: !function utils.docs\n"
        f"dataset_kwargs: {{data_files: {{test: '{tmp_path}/more/*.jsonl'}}}}\n",
        "own/utils.py": "import helper\n",
        "own/_template_yaml": "task: x\n",
        "own/notes.md": "nothing\n",
        "own/sub/other.yaml": "task: other\n",
        "shared/base_yaml": "include: deeper/top.yaml\nprocess_results: !function scores.of\n",
        "shared/scores.py": "",
        "shared/deeper/top.yaml": "include: ../base_yaml\n",
        "own/all.yaml": "group: all\ntask: [other]\n",
        "own/.hidden/x.yaml": "task: hidden\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def files(name: str) -> list[str]:
        task = {"task": str(own / name), "data": "mirror", "path": data.parent}
        found = LmEvalTask.model_validate(task).files()
        return [str(path.resolve().relative_to(tmp_path)) for path in found]

    beside = ["own/_template_yaml", "own/all.yaml", "own/mine.yaml", "own/utils.py"]
    included = ["shared/base_yaml", "shared/deeper/top.yaml", "shared/scores.py"]
    everything = [*beside, *included, "more/extra.jsonl", "mirror/test.jsonl"]
    assert files("mine.yaml")[0] == "own/mine.yaml"
    assert sorted(set(files("mine.yaml"))) == sorted(everything)
    assert sorted(set(files("all.yaml"))) == sorted([*everything, "own/sub/other.yaml"])
    (tmp_path / "shared/base_yaml").unlink()
    with pytest.raises(BadInput, match=r"mine.task: .*mine.yaml includes .*base_yaml, which is no"):
        files("mine.yaml")
    assert "own/sub/other.yaml" in files("all.yaml")  # whose neighbour is not asked
    with pytest.raises(BadInput, match=r"tasks.none.task: .*none.yaml is no file"):
        files("none.yaml")


DOWNLOADS = """
import urllib.request

def prepare(docs):
    return docs

try:
    urllib.request.urlopen("http://data.invalid/words.zip")
except OSError:
    print("went on without")
"""


def test_what_a_task_would_download_needs_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    task = write_tasks(tmp_path, first=listed("acc"))
    path = tmp_path / "first.yaml"
    path.write_text(path.read_text() + "process_docs: !function fetching.prepare\n")
    (tmp_path / "fetching.py").write_text(DOWNLOADS)
    one = LmEvalTask.model_validate({**task, "task": str(path)})
    with pytest.raises(BadInput) as caught:
        lm_eval_tasks.load(one)
    (said,) = caught.value.problems
    assert said.startswith(f"tasks.first.task: {path} would download what is not on this machine")
    assert "from data.invalid (fetching.py:8: 'urllib.request.urlopen(" in said
    assert said.endswith("put it there, or set allow_network: true")
    lm_eval_tasks.load(one, allow_network=True)
    assert "went on without" in capsys.readouterr().out


CHOOSING = """
dataset_path: owner/set
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ["one", "two three"]
doc_to_target: "{{label}}"
"""


def write_tasks(folder: Path, **metrics: str) -> dict[str, Any]:
    """Tasks of two choices with these lists of metrics and a group of them, over local rows."""
    rows = [{"text": f"Number {'of ' * i}what", "label": i % 2} for i in range(6)]
    write_rows(folder / "data/owner/set/test.jsonl", rows)
    for name, listed in metrics.items():
        text = f"task: {name}\n{CHOOSING}metric_list:\n{listed}"
        (folder / f"{name}.yaml").write_text(text)
    members = "".join(f"- {name}\n" for name in metrics)
    (folder / "all.yaml").write_text(f"group: everything\ntask:\n{members}")
    return {"task": str(folder / "all.yaml"), "data": "mirror", "path": folder / "data"}


def listed(metric: str, aggregation: str = "mean", better: bool = True) -> str:
    return (
        f"- metric: {metric}\n  aggregation: {aggregation}\n"
        f"  higher_is_better: {str(better).lower()}\n"
    )


def test_tasks_of_a_group_are_scored_by_their_own_metrics(lm: EngineLM, tmp_path: Path) -> None:
    acc, norm = listed("acc"), listed("acc_norm")
    task = write_tasks(tmp_path, first=acc + norm, second=norm + acc, third=norm)
    found = ask(lm, task)
    results = found.results["results"]
    assert list(found.tasks) == ["all@acc", "all@acc_norm"]
    by_acc, by_norm = found.tasks.values()
    assert by_acc.micro == pytest.approx(results["first"]["acc,none"])
    assert {name: score.acc for name, score in by_norm.subjects.items()} == {
        name: pytest.approx(results[name]["acc_norm,none"]) for name in ("second", "third")
    }
    assert (by_acc.metric, by_norm.metric, by_norm.items) == ("acc", "acc_norm", 12)
    assert {item.task for item in found.items} == {"all@acc", "all@acc_norm"}
    assert by_acc.part_of == by_norm.part_of == "all"
    assert "the tasks of all have different metrics" in _page(found)
    alike = ask(lm, write_tasks(tmp_path / "alike", first=acc, second=acc))
    assert list(alike.tasks) == ["all"]
    assert alike.tasks["all"].part_of is None


def test_a_metric_without_values_of_single_items_is_lm_evals_own(
    lm: EngineLM, tmp_path: Path
) -> None:
    mcc, brier = listed("mcc", "matthews_corrcoef"), listed("brier_score", "brier_score", False)
    task = write_tasks(tmp_path, first=mcc, second=brier, third=mcc + listed("acc"))
    found = ask(lm, task)
    results = found.results["results"]
    assert list(found.tasks) == ["all@first", "all@second", "all@acc"]
    first, second, third = found.tasks.values()
    assert (first.metric, first.aggregate, first.is_share) == ("mcc", True, False)
    assert first.micro == first.macro == first.subjects["first"].acc
    assert first.micro == pytest.approx(results["first"]["mcc,none"])
    assert first.micro_stderr == pytest.approx(results["first"]["mcc_stderr,none"])
    assert second.micro == pytest.approx(results["second"]["brier_score,none"])
    assert (second.micro_stderr, results["second"]["brier_score_stderr,none"]) == (None, "N/A")
    assert (third.metric, third.aggregate) == ("acc", False)
    assert "mcc is lm-eval's figure over all questions at once" in _page(found)


def _page(found: Everything) -> str:
    report = {**report_content({})[0], "tasks": found.tasks}
    return as_markdown(EvalReport.model_validate(report))


def test_a_likelihood_is_no_score(lm: EngineLM, tmp_path: Path) -> None:
    task = write_tasks(tmp_path, first=listed("perplexity", "perplexity", False))
    path = tmp_path / "first.yaml"
    text = path.read_text().replace("multiple_choice", "loglikelihood")
    path.write_text(text.replace("{{label}}", " one {{label}}"))
    found = ask(lm, {**task, "task": str(path)})
    scores = found.tasks["first"]
    assert scores.micro == pytest.approx(found.results["results"]["first"]["perplexity,none"])
    assert scores.micro > 1
    path.write_text(path.read_text() + listed("acc"))
    assert ask(lm, {**task, "task": str(path)}).tasks["first"].metric == "acc"


def test_long_prompts_lose_whole_examples(tmp_path: Path, mirror: Path) -> None:
    size = write_tokenizer(tmp_path / "model")
    short = EngineLM(NumpyBackend(size, 120), TextCodec(tmp_path / "model"), GREEDY, 4)
    task = {"task": "gsm8k", "data": "mirror", "path": mirror, "num_fewshot": 5, "limit": 3}
    scores = ask(short, task).tasks["gsm8k"]
    assert scores.truncated_items == 3
    assert scores.truncated_examples >= 3


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"task": "no_such_task", "path": "mirror"}, "lm-eval has no task, group or tag of this"),
        (
            {"task": "arc_easy", "path": "mirror"},
            "has no files of allenai/ai2_arc, ARC-Easy",
        ),
        ({"task": "bad.yaml", "path": "mirror"}, "bad.yaml: names no task"),
    ],
)
def test_what_is_not_there_is_told(
    task: dict[str, Any], says: str, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mirror.parent)
    Path("bad.yaml").write_text("dataset_path: x\n")
    with pytest.raises(BadInput, match=says):
        lm_eval_tasks.load(LmEvalTask.model_validate({"data": "mirror", **task}))


def test_bits_per_byte_by_hand_and_across_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Question: Number of what? Answer: one 四")
    write_rows(tmp_path / "b.jsonl", [{"text": "one two"}, {"text": ""}, {"text": "three"}])
    task = {"texts": [str(tmp_path / "*.txt"), str(tmp_path / "b.jsonl")], "name": "held-out"}

    class Uniform:
        """One of 256 bytes, each as likely as any: 8 bits a byte, whatever the tokens."""

        def loglikelihood_rolling(self, requests: Any) -> list[float]:
            return [-len(one.args[0].encode()) * math.log(256) for one in requests]

    found = ask(Uniform(), task)
    scores = found.tasks["held-out"]
    assert (scores.metric, scores.items, scores.form) == (
        "bits_per_byte", 3, "loglikelihood_rolling"
    )  # fmt: skip
    assert scores.micro == scores.macro == pytest.approx(8)
    assert scores.micro_stderr == pytest.approx(0)
    totals = []
    for vocab_size in (300, 400):
        size = write_tokenizer(tmp_path / f"model-{vocab_size}", vocab_size)
        codec = TextCodec(tmp_path / f"model-{vocab_size}")
        lm = EngineLM(NumpyBackend(size, 32), codec, GREEDY, 4)
        one = ask(lm, task)
        weights = [item.weight for item in one.items]
        assert weights == [41, 7, 5]
        values = np.array([item.score for item in one.items])
        assert one.tasks["held-out"].micro == pytest.approx((values * weights).sum() / 53)
        totals.append(one.tasks["held-out"].micro)
    assert totals[0] != totals[1]


def test_texts_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"words": "y"}\n')
    with pytest.raises(BadInput, match=r"a.jsonl:2: is .* an object with text"):
        ask(None, {"texts": [str(tmp_path / "a.jsonl")]})
    for pattern in ("", ".", "/", "a**"):
        with pytest.raises(BadInput, match=r"tasks.text.texts: no file fits "):
            TextTask(texts=(pattern,)).files()
    with pytest.raises(BadInput, match=r"tasks.text.texts: no file fits '.*nothing\*'"):
        TextTask(texts=(str(tmp_path / "nothing*"),)).files()


def test_unlabelled_answers_become_a_submission_not_a_score(tmp_path: Path) -> None:
    header = "id,question,A,B,C,D"
    (tmp_path / "test").mkdir()
    (tmp_path / "test/law_test.csv").write_text(f"{header}\n0,q,a,b,c,d\n7,r,a,b,c,d\n")
    task = {"suite": "ceval", "data": "local", "path": tmp_path, "split": "test"}
    found = ask(ConstantLM("C"), {**task, "submission": True})
    assert (found.tasks, found.items) == ({}, [])
    assert found.submissions == {"ceval": {"law": {"0": "C", "7": "C"}}}
    with pytest.raises(ValueError, match="submission: true writes the answers to hand in"):
        TaskConfig.model_validate(task)
    with pytest.raises(ValueError, match="it is for suite: ceval with split: test"):
        TaskConfig.model_validate({**task, "split": "val", "submission": True})


CMMLU = ",Question,A,B,C,D,Answer\n0,甲？,a,b,c,d,C\n1,乙？,a,b,c,d,A\n"


def test_cmmlu_as_published_and_as_the_hub_has_it(tmp_path: Path) -> None:
    row = {"Question": "丙？", "A": "a", "B": "b", "C": "c", "D": "d", "Answer": "C"}
    for split in ("dev", "test"):
        (tmp_path / "csv" / split).mkdir(parents=True)
        (tmp_path / "csv" / split / "agronomy.csv").write_text(CMMLU)
        write_rows(tmp_path / "rows" / split / "virology.jsonl", [row, {**row, "Answer": "B"}])
        datasets.Dataset.from_list([row]).to_parquet(
            str(tmp_path / "rows" / split / "arts.parquet")
        )
    lm = ConstantLM("C")
    tasks = [
        {"suite": "cmmlu", "data": "local", "path": tmp_path / kind, "num_fewshot": 1, "name": kind}
        for kind in ("csv", "rows")
    ]
    found = outcome(lm, *tasks).tasks
    assert (found["csv"].correct, found["csv"].items) == (1, 2)
    assert {name: (s.correct, s.n) for name, s in found["rows"].subjects.items()} == {
        "arts": (1, 1),
        "virology": (1, 2),
    }
    assert set(found["rows"].groups) == {"Humanities", "STEM"}
    assert found["csv"].fewshot == {"agronomy": ["0"]}
    assert lm.prompts[0].startswith(
        "以下是关于农学的单项选择题，请直接给出正确答案的选项。\n\n甲？"
    )
    (tmp_path / "csv/test/agronomy.csv").write_text(CMMLU.replace(",C\n", ",E\n"))
    with pytest.raises(BadInput, match=r"agronomy.csv:2: the answer is 'E'"):
        load_subjects(TaskConfig.model_validate(tasks[0]), None)
