"""The gate: rules on hand-made reports, unlike reports refused by name, the decision written."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from pydantic import ValidationError

from artifacts.decision import Decision, read_decision
from artifacts.errors import BadInput
from artifacts.validation import sentences
from stages.gate.comparison import compare
from stages.gate.config import SPEC, GateConfig
from stages.gate.rules import read_scores
from stages.gate.run import run
from stages.spec import Job
from tests.reports import report_content, write_artifact

TASK = "world_en"


def decide(
    tmp_path: Path, rules: list[dict[str, Any]], **reports: tuple[dict, list[dict]]
) -> tuple[Decision, dict[str, Any]]:
    """Write the reports, run the gate, return the decision and the headline."""
    inputs = {
        role: write_artifact(tmp_path / role, content, role[-1])
        for role, content in reports.items()
    }
    work = tmp_path / "work"
    work.mkdir()
    headline = run(Job(GateConfig(rules=rules), inputs, work, "f" * 64))
    return read_decision(work), headline


def answers(right: int, of: int) -> list[bool]:
    return [True] * right + [False] * (of - right)


def gain(**changes: Any) -> dict[str, Any]:
    return {"rule": "gain_over_base", "task": TASK, **changes}


def floor(at_least: float, **changes: Any) -> dict[str, Any]:
    return {"rule": "floor", "task": TASK, "at_least": at_least, **changes}


def no_regression(margin: float) -> dict[str, Any]:
    return {"rule": "no_regression", "task": TASK, "margin": margin}


def test_all_rules_with_their_numbers(tmp_path: Path) -> None:
    decision, headline = decide(
        tmp_path,
        [floor(0.8), gain(at_least=0.3), no_regression(0.05)],
        candidate=report_content({TASK: answers(180, 200)}, model="c"),
        base=report_content({TASK: answers(60, 200)}, model="b"),
        baseline=report_content({TASK: answers(170, 200)}, model="l"),
    )
    assert headline == {
        "outcome": "approved",
        "rules": 3,
        "passed": 3,
        "failed": [],
        "not_judged": [],
    }
    by_floor, by_gain, by_baseline = decision.rules
    # Wilson with t(199) = 1.65255 and n = 199 for p = 0.9.
    assert by_floor.bound == pytest.approx(0.8593, abs=2e-4)
    assert (by_gain.wins, by_gain.losses, by_gain.difference) == (120, 0, pytest.approx(0.6))
    assert by_gain.standard_error == pytest.approx((0.6 * 0.4 / 199) ** 0.5)
    assert by_gain.bound == pytest.approx(0.6 - 1.65255 * (0.24 / 199) ** 0.5, abs=1e-5)
    assert (by_baseline.wins, by_baseline.losses, by_baseline.threshold) == (10, 0, -0.05)
    assert by_baseline.mcnemar_p == pytest.approx(2 / 1024)
    assert decision.candidate.model.identity == "c" * 64
    assert decision.base is not None
    assert decision.base.report_identity == "e" * 64
    table = (tmp_path / "work/decision.md").read_text()
    assert "| gain_over_base | world_en | yes | 0.9000 | 0.3000 | +0.6000 |" in table
    assert (tmp_path / "work/decision.png").read_bytes()[:4] == b"\x89PNG"


def test_one_failing_rule_rejects(tmp_path: Path) -> None:
    decision, headline = decide(
        tmp_path,
        [floor(0.5), gain()],
        candidate=report_content({TASK: answers(160, 200)}),
        base=report_content({TASK: answers(160, 200)[::-1]}),
    )
    assert decision.outcome == headline["outcome"] == "rejected"
    assert [result.passed for result in decision.rules] == [True, False]
    assert headline["failed"] == ["gain_over_base world_en"]
    assert "**no**" in (tmp_path / "work/decision.md").read_text()


def test_a_score_above_the_floor_but_within_its_error_fails(tmp_path: Path) -> None:
    decision, _ = decide(tmp_path, [floor(0.8)], candidate=report_content({TASK: answers(82, 100)}))
    assert decision.rules[0].candidate == pytest.approx(0.82)
    assert not decision.rules[0].passed


def test_the_same_model_gains_nothing(tmp_path: Path) -> None:
    same = report_content({TASK: answers(100, 200)})
    decision, _ = decide(tmp_path, [gain()], candidate=same, base=same)
    assert not decision.rules[0].passed
    assert decision.rules[0].difference == 0


def test_clusters_widen_the_error(tmp_path: Path) -> None:
    right, was = answers(150, 200), answers(140, 200)
    facts = {TASK: [f"fact-{i // 10}" for i in range(200)]}
    spread, _ = decide(
        tmp_path / "a", [gain()], candidate=report_content({TASK: right}),
        base=report_content({TASK: was}),
    )  # fmt: skip
    bundled, _ = decide(
        tmp_path / "b", [gain()], candidate=report_content({TASK: right}, clusters=facts),
        base=report_content({TASK: was}, clusters=facts),
    )  # fmt: skip
    assert (spread.outcome, bundled.outcome) == ("approved", "rejected")
    assert bundled.rules[0].clusters == 20
    assert any("clustered" in note for note in bundled.rules[0].notes)


def test_without_a_baseline_nothing_can_regress_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(Axes, "annotate", lambda axes, text, *args, **how: drawn.append(text))
    decision, headline = decide(
        tmp_path,
        [floor(0.05), no_regression(0.01)],
        candidate=report_content({TASK: answers(10, 50)}),
    )
    assert decision.outcome == "approved"
    assert [(result.passed, result.judged) for result in decision.rules] == [
        (True, True),
        (True, False),
    ]
    assert (headline["passed"], headline["not_judged"]) == (1, ["no_regression world_en"])
    table = (tmp_path / "work/decision.md").read_text()
    said = "not judged: no release stands there yet"
    assert f"1 of 2 rules passed; 1 {said}; all must." in table
    assert f"| no_regression | world_en | {said} | 0.2000 |" in table
    assert f"- **no_regression** on world_en {said}: the baseline's channel is empty" in table
    assert drawn == [f"  {said}"]


def test_a_loss_within_the_margin_that_may_be_larger_fails(tmp_path: Path) -> None:
    right = answers(100, 200)
    baseline = [not one if i % 20 == 0 else one for i, one in enumerate(right)]
    decision, _ = decide(
        tmp_path,
        [no_regression(0.02)],
        candidate=report_content({TASK: right}),
        baseline=report_content({TASK: baseline}),
    )
    (result,) = decision.rules
    assert (result.wins, result.losses, result.difference) == (5, 5, 0)
    assert not result.passed
    assert "cannot be ruled out" in result.reason


def test_a_margin_within_the_noise_is_flagged(tmp_path: Path) -> None:
    def notes(margin: float) -> list[str]:
        decision, _ = decide(
            tmp_path / str(margin),
            [no_regression(margin)],
            candidate=report_content({TASK: answers(100, 200)}),
            baseline=report_content({TASK: answers(100, 200)[::-1][:195] + [True] * 5}),
        )
        return decision.rules[0].notes

    assert "two standard errors" in notes(0.05)[0]
    assert notes(0.3) == []


def test_a_floor_at_chance_is_flagged(tmp_path: Path) -> None:
    decision, _ = decide(
        tmp_path, [floor(0.25)], candidate=report_content({TASK: answers(90, 100)})
    )
    assert decision.rules[0].notes == ["the floor is no higher than guessing (0.250)"]


def test_the_order_of_items_does_not_matter(tmp_path: Path) -> None:
    mixed = [True, False, True, True] * 50
    report, items = report_content({TASK: mixed})
    decision, _ = decide(
        tmp_path,
        [gain()],
        candidate=(report, items[::-1]),
        base=report_content({TASK: mixed}),
    )
    assert (decision.rules[0].wins, decision.rules[0].losses) == (0, 0)


CONDITION_CHANGES = [
    ("backend", "onnxruntime", "backend kind"),
    ("dtype", "bfloat16", "element type"),
    ("sampling_hash", "x" * 64, "sampling profile"),
    ("chat_template", "c" * 64, "chat template"),
    ("lm_eval", "0.4.14", "lm-eval version"),
    ("bos", "<s>", "first token"),
]
TASK_CHANGES = [
    ("suite", "ceval", "suite"),
    ("form", "letter", "form of the answers"),
    ("version", "2.0", "task version"),
    ("num_fewshot", 5, "few-shot count"),
    ("prompt_hash", "q" * 64, "prompt hash"),
    ("truncated_items", 3, "truncation"),
]


@pytest.mark.parametrize(("key", "value", "named"), CONDITION_CHANGES + TASK_CHANGES)
@pytest.mark.parametrize("role", ["base", "baseline"])
def test_unlike_reports_are_refused_by_name(
    tmp_path: Path, role: str, key: str, value: Any, named: str
) -> None:
    report, items = report_content({TASK: answers(50, 100)})
    place = report["conditions"] if key in report["conditions"] else report["tasks"][TASK]
    place[key] = value
    rule = gain() if role == "base" else no_regression(0.1)
    with pytest.raises(BadInput) as caught:
        decide(
            tmp_path,
            [rule],
            candidate=report_content({TASK: answers(90, 100)}),
            **{role: (report, items)},
        )
    assert len(caught.value.problems) == 1
    assert f"inputs.{role}: is not comparable" in str(caught.value)
    assert named in str(caught.value)


def test_every_difference_is_named_at_once(tmp_path: Path) -> None:
    report, items = report_content({TASK: answers(50, 100)})
    report["conditions"]["dtype"] = "bfloat16"
    report["tasks"][TASK]["num_fewshot"] = 5
    items[0]["id"] = "another"
    items[1]["gold"] = 3
    with pytest.raises(BadInput) as caught:
        decide(
            tmp_path,
            [gain()],
            candidate=report_content({TASK: answers(90, 100)}),
            base=(report, items),
        )
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    assert "1 item stands only in the candidate's report, first item-0000" in text
    assert "1 item stands only in the base's report, first another" in text
    assert "gold differs on 1 item, first item-0001" in text


def test_another_tokenizer_may_be_compared_and_brings_its_own_first_token(tmp_path: Path) -> None:
    report, items = report_content({TASK: answers(50, 100)})
    report["conditions"].update(tokenizer_hash="u" * 64, bos="<s>")
    decision, _ = decide(
        tmp_path,
        [gain()],
        candidate=report_content({TASK: answers(90, 100)}),
        base=(report, items),
    )
    assert decision.outcome == "approved"


def test_tasks_that_no_rule_compares_may_differ(tmp_path: Path) -> None:
    decision, _ = decide(
        tmp_path,
        [gain(), floor(0.1) | {"task": "other"}],
        candidate=report_content({TASK: answers(90, 100), "other": answers(50, 100)}),
        base=report_content({TASK: answers(50, 100)}),
    )
    assert decision.outcome == "approved"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([gain()], "gain_over_base needs the input base"),
        ([floor(0.5) | {"task": "mmlu"}], "'mmlu' is not in the candidate's report"),
        ([floor(0.5) | {"task": "lonely"}], "fewer than two independent items"),
    ],
)
def test_rules_that_cannot_be_applied_are_refused(
    tmp_path: Path, rules: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        decide(
            tmp_path,
            rules,
            candidate=report_content({TASK: answers(5, 10), "lonely": [True]}),
        )


def test_a_base_without_the_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="world_en: the candidate's report has this task, the base"):
        decide(
            tmp_path,
            [gain()],
            candidate=report_content({TASK: answers(5, 10)}),
            base=report_content({"other": answers(5, 10)}),
        )


def test_a_report_that_contradicts_its_items_is_refused(tmp_path: Path) -> None:
    report, items = report_content({TASK: answers(5, 10)})
    report["tasks"][TASK]["correct"] = 9
    with pytest.raises(BadInput, match="disagree on task world_en"):
        decide(tmp_path, [floor(0.1)], candidate=(report, items))


@pytest.mark.parametrize("form", ["generate_until", "loglikelihood, loglikelihood_rolling"])
def test_the_longest_input_counts_where_text_is_written_or_rolled(
    tmp_path: Path, form: str
) -> None:
    def longest(tokens: int, form: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        report, items = report_content({TASK: answers(50, 100)})
        report["conditions"]["max_length"] = tokens
        report["tasks"][TASK]["form"] = form
        return report, items

    said = rf"{TASK}: longest input in tokens \(max_length\): candidate 64, base 32; score both"
    with pytest.raises(BadInput, match=said):
        decide(tmp_path / "a", [gain()], candidate=longest(64, form), base=longest(32, form))
    choosing = {"candidate": longest(64, "multiple_choice"), "base": longest(32, "multiple_choice")}
    assert decide(tmp_path / "b", [gain()], **choosing)[0].outcome == "rejected"


def test_a_figure_over_all_items_at_once_is_nothing_to_judge(tmp_path: Path) -> None:
    report, items = report_content({TASK: [False] * 10})
    report["tasks"][TASK] |= {"metric": "mcc", "aggregate": True, "micro": 0.4}
    with pytest.raises(BadInput, match=f"rules.0.task: '{TASK}' is measured in mcc; rules look at"):
        decide(tmp_path, [floor(0.1)], candidate=(report, items))
    scores = read_scores(write_artifact(tmp_path / "again", (report, items), "a"))
    with pytest.raises(BadInput, match="a: shares no task with the others"):
        compare(["a", "b"], [scores, scores])


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([], "at least 1 item"),
        ([{"task": TASK}], "unable to extract tag"),
        ([{"rule": "vibes", "task": TASK}], "'floor', 'gain_over_base', 'no_regression'"),
        ([floor(80)], "less than or equal to 1"),
        ([no_regression(0)], "greater than 0"),
        ([gain(confidence=1.0)], "less than 1"),
        ([gain(margin=0.1)], "margin: is no known key"),
        ([floor(0.5), floor(0.6)], "floor stands twice for task world_en"),
    ],
)
def test_wrong_rules_are_named(rules: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GateConfig(rules=rules)
    assert said in "\n".join(sentences(caught.value, "gate"))


def test_the_same_reports_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        decide(
            tmp_path / name,
            [floor(0.8), gain()],
            candidate=report_content({TASK: answers(90, 100)}),
            base=report_content({TASK: answers(50, 100)}),
        )
    for file in ("decision.json", "decision.md", "decision.png"):
        first, second = (tmp_path / name / "work" / file for name in ("one", "two"))
        assert first.read_bytes() == second.read_bytes()


def test_the_exit_code_follows_the_outcome(tmp_path: Path) -> None:
    class Headline:
        def __init__(self, outcome: str):
            self.headline = {"outcome": outcome}

    assert SPEC.exit_code(Headline("approved")) == 0  # type: ignore[arg-type]
    assert SPEC.exit_code(Headline("rejected")) == 3  # type: ignore[arg-type]
    assert json.loads(json.dumps(GateConfig(rules=[floor(0.5)]).model_dump(mode="json")))


def any_of(*tasks: str) -> dict[str, Any]:
    return {"rule": "gain_on_any", "tasks": list(tasks)}


def test_a_gain_on_any_of_several_tasks_is_adjusted_for_their_number(tmp_path: Path) -> None:
    # 20 wins and 8 losses: p = 0.012 alone, too much for one of five.
    right, was = answers(112, 200), [*answers(100, 200)[8:], *answers(8, 8)]
    others = {f"t{i}": answers(100, 200) for i in range(4)}
    alone, _ = decide(
        tmp_path / "alone", [gain()], candidate=report_content({TASK: right}),
        base=report_content({TASK: was}),
    )  # fmt: skip
    several, _ = decide(
        tmp_path / "several", [any_of(TASK, *others)],
        candidate=report_content({TASK: right, **others}),
        base=report_content({TASK: was, **others}),
    )  # fmt: skip
    assert (alone.outcome, several.outcome) == ("approved", "rejected")
    (result,) = several.rules
    assert (result.rule, result.wins, result.losses) == ("gain_on_any", 20, 8)
    assert result.confidence == pytest.approx(0.99)
    assert "adjusted for 5 tasks (Holm): world_en 0." in result.notes[0]
    clear, _ = decide(
        tmp_path / "clear", [any_of(TASK, *others)],
        candidate=report_content({TASK: answers(140, 200), **others}),
        base=report_content({TASK: was, **others}),
    )  # fmt: skip
    assert clear.outcome == "approved"
    assert (tmp_path / "clear/work/decision.png").is_file()


def test_the_clearest_gain_is_shown_where_adjusted_p_values_tie(tmp_path: Path) -> None:
    right, worse = answers(100, 200), answers(96, 200)
    better = [*answers(0, 4), *answers(101, 196)]  # five wins, four losses: three times p is over 1
    decision, _ = decide(
        tmp_path, [any_of("first", "second", "third")],
        candidate=report_content({"first": worse, "second": better, "third": right}),
        base=report_content({"first": right, "second": right, "third": right}),
    )  # fmt: skip
    (result,) = decision.rules
    assert result.notes == ["p-values adjusted for 3 tasks (Holm): first 1, second 1, third 1"]
    assert "is +0.005 on second" in result.reason


def test_a_task_that_any_rule_names_must_be_there(tmp_path: Path) -> None:
    report = report_content({TASK: answers(1, 2)})
    with pytest.raises(BadInput, match=r"gate.rules.0.task: 'moon' is not in the candidate's"):
        decide(tmp_path, [any_of(TASK, "moon")], candidate=report, base=report)
