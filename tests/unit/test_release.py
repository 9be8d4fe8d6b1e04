"""A release is made of things that belong together, or it is not made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.decision import Decision, JudgedReport, RuleResult, write_decision
from artifacts.errors import BadInput
from artifacts.eval_report import (
    Conditions,
    EvalReport,
    Item,
    Score,
    ScoredModel,
    TaskScores,
    write_report,
)
from artifacts.manifest import InputEntry, Manifest, read_manifest
from artifacts.store import artifact_path
from artifacts.tokenizer_files import write_object
from stages.process import execute
from stages.release.config import SPEC
from stages.release.run import run
from stages.spec import Request
from tests.tiny_models import as_artifact, tiny, write_hf

ITEMS = [
    Item(
        task="world_en",
        subject="capitals",
        id=f"q{i}",
        gold=i % 4,
        choice=i % 3,
        correct=i % 4 == i % 3,
        loglikelihoods=[-1.0, -2.0, -3.0, -4.0],
    )
    for i in range(12)
]


def report_on(model: ScoredModel, backend: str, **changes: Any) -> EvalReport:
    score = Score(n=12, correct=6, acc=0.5, stderr=0.1)
    task = TaskScores(
        suite="mmlu",
        form="continuation",
        language="en",
        version="1",
        num_fewshot=0,
        prompt_hash=changes.pop("prompt_hash", "p" * 64),
        chance=0.25,
        items=12,
        correct=6,
        micro=0.5,
        micro_stderr=0.1,
        macro=0.5,
        macro_stderr=0.1,
        subjects={"capitals": score},
        groups={},
        answer_counts={"A": 4, "B": 4, "C": 4},
    )
    conditions = {
        "backend": backend,
        "dtype": "fp32",
        "sampling": {},
        "sampling_hash": "s",
        "tokenizer_hash": "t",
        "lm_eval": "0.4.13",
        "max_length": 64,
    }
    names = changes.pop("tasks", ["world_en"])
    return EvalReport(
        model=model,
        conditions=Conditions(**(conditions | changes)),
        tasks=dict.fromkeys(names, task),
    )


def scored(path: Path, **changes: Any) -> ScoredModel:
    manifest = read_manifest(path)
    values = {"kind": manifest.kind, "identity": manifest.identity, "digest": manifest.digest}
    return ScoredModel(**(values | changes))


def entry_of(path: Path, digest: str | None = None) -> InputEntry:
    made = read_manifest(path)
    return InputEntry(kind=made.kind, identity=made.identity, digest=digest or made.digest)


def judged(report: Path, model: Path, **changes: Any) -> JudgedReport:
    manifest = read_manifest(report)
    values = {
        "report_digest": manifest.digest,
        "report_identity": manifest.identity,
        "model": scored(model),
    }
    return JudgedReport(**(values | changes))


class Makings:
    """The seven artifacts, each to be spoiled in one way before they are written."""

    def __init__(self, store: Path):
        self.store = store
        self.candidate: dict[str, Any] = {}
        self.candidate_model: dict[str, Any] = {}
        self.bundle_scores: dict[str, Any] = {}
        self.bundle_model: dict[str, Any] = {}
        self.bundle_input: str | None = None
        self.proof_inputs: dict[str, str] = {}
        self.decision: dict[str, Any] = {}
        self.judged: dict[str, Any] = {}
        self.bundle_decision: dict[str, Any] = {}
        self.bundle_rule = "same_choices"
        self.bundle_judged: dict[str, Any] = {}
        self.agreed: Any = True
        self.precision = "fp32"

    def release(self) -> tuple[Manifest, Path]:
        store = self.store
        model = as_artifact(store, "hf-model", lambda d: write_hf(d, tiny()))
        agreement = {
            "passed": self.agreed,
            "precision": self.precision,
            "cases": [{}, {}],
            "longest": 64,
            "max_abs": 2e-6,
            "max_scaled": 1e-6,
            "threshold": 1e-5,
        }
        entry = entry_of(model, self.bundle_input)
        bundle = as_artifact(
            store,
            "onnx-bundle",
            lambda d: write_object(d / "config.json", {}),
            identity="b" * 64,
            inputs={"model": entry},
        )
        proof = as_artifact(
            store,
            "proof",
            lambda d: write_object(d / "agreement.json", agreement),
            identity="a" * 64,
            inputs={
                role: entry_of(path, self.proof_inputs.get(role))
                for role, path in (("bundle", bundle), ("model", model))
            },
        )
        candidate = as_artifact(
            store,
            "eval-report",
            lambda d: write_report(
                d,
                report_on(scored(model, **self.candidate_model), "mindspore", **self.candidate),
                ITEMS,
            ),
            identity="c" * 64,
        )
        bundle_scores = as_artifact(
            store,
            "eval-report",
            lambda d: write_report(
                d,
                report_on(scored(bundle, **self.bundle_model), "onnxruntime", **self.bundle_scores),
                ITEMS,
            ),
            identity="d" * 64,
        )
        rule = RuleResult(
            rule="floor",
            task="world_en",
            passed=self.decision.get("outcome") != "rejected",
            reason="50.0 % is | at least 40.0 %",
            candidate=0.5,
            threshold=0.4,
            confidence=0.95,
            items=12,
            clusters=12,
        )
        values: dict[str, Any] = {
            "outcome": "approved",
            "candidate": judged(candidate, model, **self.judged),
            "base": None,
            "baseline": None,
            "rules": [rule],
        }
        decision = as_artifact(
            store,
            "decision",
            lambda d: write_decision(d, Decision(**(values | self.decision))),
            identity="e" * 64,
        )
        beside = rule.model_copy(update={"rule": self.bundle_rule, "task": "all tasks"})
        values |= {
            "candidate": judged(bundle_scores, bundle, **self.bundle_judged),
            "base": judged(candidate, model, **self.judged),
            "rules": [beside.model_copy(update={"passed": not self.bundle_decision})],
        }
        bundle_decision = as_artifact(
            store,
            "decision",
            lambda d: write_decision(d, Decision(**(values | self.bundle_decision))),
            identity="f" * 64,
        )
        inputs = {
            "decision": decision,
            "bundle_decision": bundle_decision,
            "bundle": bundle,
            "proof": proof,
            "model": model,
            "candidate": candidate,
            "bundle_scores": bundle_scores,
        }
        request = Request("release", {}, {k: str(v) for k, v in inputs.items()}, str(store))
        made = execute(SPEC, run, request)
        return made, artifact_path(store, "release", made.identity)


def test_a_release_says_what_it_is(tmp_path: Path) -> None:
    manifest, directory = Makings(tmp_path).release()
    release = json.loads((directory / "release.json").read_text())
    assert release["artifacts"].keys() == {
        "decision",
        "bundle_decision",
        "bundle",
        "proof",
        "model",
        "candidate",
        "bundle_scores",
    }
    for role, entry in release["artifacts"].items():
        assert entry["digest"] == manifest.inputs[role].digest
    assert [rule["rule"] for rule in release["gate_bundle"]] == ["same_choices"]
    assert release["bundle_scores"] == release["scores"]
    assert (manifest.headline["precision"], release["agreement"]["precision"]) == ("fp32", "fp32")
    assert release["parameters"] == tiny().parameter_count()
    assert manifest.headline["micro.world_en"] == 0.5
    page = (directory / "RELEASE.md").read_text()
    assert "| world_en | 12 | 50.0% ± 10.0% | 50.0% ± 10.0% | 50.0% ± 10.0% | 25.0% |" in page
    assert r"| floor | world_en | yes | 50.0 % is \| at least 40.0 % |" in page
    assert "| same_choices | all tasks | yes |" in page
    assert "2 cases up to 64 tokens, weights in fp32" in page
    assert "Licence: not stated" in page
    for folder in ("hf-model", "onnx-bundle"):
        named = next(word for word in page.split('"') if word.startswith(f"../../{folder}/"))
        assert (directory / named.removesuffix("/model.onnx")).is_dir()


def spoil_candidate_model(m: Makings) -> None:
    m.candidate_model = {"digest": "0" * 64}


def spoil_bundle_model(m: Makings) -> None:
    m.bundle_model = {"digest": "0" * 64}


def spoil_kind(m: Makings) -> None:
    m.bundle_model = {"kind": "hf-model"}


def add_adapter(m: Makings) -> None:
    m.candidate_model = {"adapter": "a" * 64}


def reject(m: Makings) -> None:
    m.decision = {"outcome": "rejected"}


def judge_another(m: Makings) -> None:
    m.judged = {"report_digest": "0" * 64}


def export_another(m: Makings) -> None:
    m.bundle_input = "0" * 64


def disagree(m: Makings) -> None:
    m.agreed = False


def agree_in_words_only(m: Makings) -> None:
    m.agreed = "yes"


def other_prompts(m: Makings) -> None:
    m.bundle_scores = {"prompt_hash": "q" * 64}


def other_tasks(m: Makings) -> None:
    m.bundle_scores = {"tasks": ["world_en", "world_zh"]}


def other_sampling(m: Makings) -> None:
    m.bundle_scores = {"sampling_hash": "other"}


def other_tokenizer(m: Makings) -> None:
    m.bundle_scores = {"tokenizer_hash": "other"}


def prove_another_bundle(m: Makings) -> None:
    m.proof_inputs = {"bundle": "0" * 64}


def prove_against_another_model(m: Makings) -> None:
    m.proof_inputs = {"model": "0" * 64}


def reject_the_bundle(m: Makings) -> None:
    m.bundle_decision = {"outcome": "rejected"}


def judge_another_bundle(m: Makings) -> None:
    m.bundle_judged = {"report_digest": "0" * 64}


def judge_beside_nothing(m: Makings) -> None:
    m.bundle_decision = {"base": None}


def ask_too_little_of_fp32(m: Makings) -> None:
    m.bundle_rule = "no_loss"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_candidate_model, "scores the hf-model with digest 0000000000000000"),
        (spoil_bundle_model, "scores the onnx-bundle with digest 0000000000000000"),
        (spoil_kind, "scores the hf-model with digest"),
        (add_adapter, "with an adapter added"),
        (reject, r"the gate rejected this model \(floor on world_en\)"),
        (judge_another, "is about the report with digest 0000000000000000"),
        (export_another, "was made from the model with digest 0000000000000000"),
        (disagree, "does not say that the proof passed"),
        (agree_in_words_only, "does not say that the proof passed"),
        (other_prompts, "was asked with other prompts"),
        (other_tasks, "task world_zh is in one of the two reports only"),
        (other_sampling, "conditions.sampling_hash is 'other'"),
        (other_tokenizer, "conditions.tokenizer_hash is 'other'"),
        (prove_another_bundle, "was made from the bundle with digest 0000000000000000"),
        (prove_against_another_model, "/proof/.*was made from the model with digest 00000000"),
        (reject_the_bundle, r"the gate rejected this bundle \(same_choices on all tasks\)"),
        (judge_another_bundle, "is about the report with digest 0000000000000000, the input bun"),
        (judge_beside_nothing, "is about the report with digest none, the input candidate has"),
        (ask_too_little_of_fp32, "a bundle in fp32 must choose as the model on every item"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, spoil: Callable[[Makings], None], said: str
) -> None:
    makings = Makings(tmp_path)
    spoil(makings)
    with pytest.raises(BadInput, match=said):
        makings.release()
    assert not list((tmp_path / "release").glob("[0-9a-f]*"))


def test_all_reasons_are_given_together(tmp_path: Path) -> None:
    makings = Makings(tmp_path)
    reject(makings)
    export_another(makings)
    with pytest.raises(BadInput) as caught:
        makings.release()
    assert len(caught.value.problems) == 2


def test_rounded_bundles_are_released_by_what_was_stated(tmp_path: Path) -> None:
    makings = Makings(tmp_path)
    makings.precision, makings.bundle_rule = "int8", "no_loss"
    makings.bundle_scores = {"dtype": "int8"}
    manifest, directory = makings.release()
    assert manifest.headline["precision"] == "int8"
    assert "| no_loss | all tasks | yes |" in (directory / "RELEASE.md").read_text()
