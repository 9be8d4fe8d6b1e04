"""A bundle beside its model: the same choices in fp32, a stated loss where weights are rounded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.decision import Decision, read_decision
from artifacts.errors import BadInput
from stages.gate.bundle import run
from stages.gate.bundle_config import SPEC, BundleGateConfig
from stages.gate.chart import measured
from stages.spec import Job
from tests.reports import report_content, write_artifact

TASK = "world_en"
MODEL = [True] * 150 + [False] * 50


def beside(
    tmp_path: Path, bundle: list[bool], rules: list[dict[str, Any]] | None = None, **conditions: Any
) -> tuple[Decision, dict[str, Any]]:
    """The bundle's right answers beside the model's: the decision and the headline."""
    ours, theirs = (report_content({TASK: right}) for right in (bundle, MODEL))
    ours[0]["conditions"] |= {"backend": "onnxruntime", "dtype": "int8"} | conditions
    inputs = {
        "candidate": write_artifact(tmp_path, ours, "c"),
        "base": write_artifact(tmp_path, theirs, "b"),
    }
    (tmp_path / "work").mkdir()
    given = {} if rules is None else {"rules": rules}
    headline = run(Job(BundleGateConfig.model_validate(given), inputs, tmp_path / "work", "f"))
    return read_decision(tmp_path / "work"), headline


def no_loss(margin: float) -> dict[str, Any]:
    return {"rule": "no_loss", "task": TASK, "margin": margin}


def changed(wins: int, losses: int) -> list[bool]:
    """The model's answers, `wins` wrong ones turned right and `losses` right ones wrong."""
    return [*MODEL[losses:150], *[False] * losses, *[True] * wins, *MODEL[150 + wins :]]


def test_without_rules_every_choice_must_be_the_models(tmp_path: Path) -> None:
    decision, headline = beside(tmp_path / "a", MODEL)
    (result,) = decision.rules
    assert (headline["outcome"], result.rule, result.items) == ("approved", "same_choices", 200)
    assert result.reason == "the bundle chooses as the model on 200 of 200 items"
    decision, headline = beside(tmp_path / "b", changed(1, 0))
    assert headline["failed"] == ["same_choices all tasks"]
    assert decision.rules[0].candidate == pytest.approx(199 / 200)
    assert "otherwise on item-0150 of world_en (bundle 0, model 1)" in decision.rules[0].reason
    assert measured(decision) == "share of equal choices (same_choices)"
    page = (tmp_path / "b/work/decision.md").read_text()
    assert "| same_choices | all tasks | **no** | 0.9950 |" in page
    assert "\n0 of 1 rule passed; all must." in page


def test_items_that_differ_are_named_up_to_eight(tmp_path: Path) -> None:
    decision, _ = beside(tmp_path, changed(20, 0))
    assert decision.rules[0].reason.endswith(
        "item-0157 of world_en (bundle 0, model 1) and 12 more"
    )


def test_a_stated_loss_is_ruled_out_or_not(tmp_path: Path) -> None:
    good, _ = beside(tmp_path / "a", changed(4, 4), [no_loss(0.05)])
    (result,) = good.rules
    assert (good.outcome, result.wins, result.losses) == ("approved", 4, 4)
    # 8 of 200 differ: SE = sqrt(8 / (200 * 199)), t(199) = 1.65255.
    assert result.bound == pytest.approx(-1.65255 * (8 / (200 * 199)) ** 0.5, abs=1e-4)
    assert "the change from the model is +0.000" in result.reason
    bad, headline = beside(tmp_path / "b", changed(0, 30), [no_loss(0.05)])
    assert (bad.outcome, bad.rules[0].difference) == ("rejected", pytest.approx(-0.15))
    assert headline["failed"] == ["no_loss world_en"]
    assert (tmp_path / "b/work/decision.png").read_bytes()[:4] == b"\x89PNG"


def test_a_loss_that_only_may_be_too_large_is_refused_as_well(tmp_path: Path) -> None:
    decision, _ = beside(tmp_path, changed(10, 12), [no_loss(0.02)])
    assert decision.rules[0].difference == pytest.approx(-0.01)
    assert decision.outcome == "rejected"
    assert any("lies within the noise" in note for note in decision.rules[0].notes)


def test_a_floor_holds_for_the_bundle_itself(tmp_path: Path) -> None:
    rules = [no_loss(0.3), {"rule": "floor", "task": TASK, "at_least": 0.7}]
    decision, _ = beside(tmp_path, changed(0, 20), rules)
    assert [result.passed for result in decision.rules] == [True, False]
    assert decision.base is not None


def test_unlike_reports_are_refused_by_name_but_for_engine_and_precision(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="sampling profile"):
        beside(tmp_path, MODEL, sampling_hash="x")


def test_a_rejected_bundle_ends_with_3() -> None:
    assert SPEC.exit_code(SimpleNamespace(headline={"outcome": "rejected"})) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [[], [no_loss(0.1), no_loss(0.2)], [{"rule": "no_loss"}]])
def test_wrong_rules(rules: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        BundleGateConfig.model_validate({"rules": rules})
