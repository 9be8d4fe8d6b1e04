"""Why something may not be released. Everything is bound by digest, nothing by name or date."""

from collections.abc import Iterator

from artifacts.decision import Decision, JudgedReport
from artifacts.eval_report import ScoredModel
from stages.release.parts import Parts

SAME = ("sampling_hash", "tokenizer_hash", "chat_template", "bos", "max_length", "lm_eval")
"""Conditions in which model and bundle must have been scored alike."""


def problems_with(parts: Parts) -> list[str]:
    """A sentence for every reason against; empty if the release may be made."""
    bindings = [*_decision_problems(parts), *_binding_problems(parts)]
    if bindings:
        return bindings  # scores of other things say nothing about these
    return list(_likeness_problems(parts))


def _decision_problems(parts: Parts) -> Iterator[str]:
    yield from _not_approved(parts, "decision", parts.decision, "model")
    yield from _not_about(parts, "decision", parts.decision.candidate, "candidate")
    judged = parts.bundle_decision
    yield from _not_approved(parts, "bundle_decision", judged, "bundle")
    yield from _not_about(parts, "bundle_decision", judged.candidate, "bundle_scores")
    yield from _not_about(parts, "bundle_decision", judged.base, "candidate")
    exact = parts.agreement.precision == "fp32"
    if exact and "same_choices" not in [rule.rule for rule in judged.rules]:
        yield (
            f"{parts.paths['bundle_decision']}: has no rule same_choices; a bundle in fp32 "
            "must choose as the model on every item"
        )


def _not_approved(parts: Parts, role: str, decision: Decision, what: str) -> Iterator[str]:
    if decision.outcome != "approved":
        failed = [f"{rule.rule} on {rule.task}" for rule in decision.rules if not rule.passed]
        yield (
            f"{parts.paths[role]}: the gate rejected this {what} ({', '.join(failed)}); "
            "only approved ones ship"
        )


def _not_about(parts: Parts, role: str, judged: JudgedReport | None, report: str) -> Iterator[str]:
    found, wanted = judged.report_digest if judged else "none", parts.manifests[report].digest
    if found != wanted:
        yield (
            f"{parts.paths[role]}: is about the report with digest {_short(found)}, "
            f"the input {report} has {_short(wanted)}"
        )


def _binding_problems(parts: Parts) -> Iterator[str]:
    yield from _scored(parts, "candidate", parts.candidate.model, "model")
    yield from _scored(parts, "bundle_scores", parts.bundle_scores.model, "bundle")
    yield from _made_from(parts, "bundle", "model")
    yield from _made_from(parts, "proof", "bundle")
    yield from _made_from(parts, "proof", "model")
    if parts.agreement.passed is not True:
        yield f"{parts.paths['proof'] / 'agreement.json'}: does not say that the proof passed"


def _made_from(parts: Parts, role: str, source: str) -> Iterator[str]:
    entry, wanted = parts.manifests[role].inputs.get(source), parts.manifests[source].digest
    if entry is None or entry.digest != wanted:
        found = _short(entry.digest) if entry else "none"
        yield (
            f"{parts.paths[role]}: was made from the {source} with digest {found}, "
            f"this one has {_short(wanted)}"
        )


def _scored(parts: Parts, report: str, scored: ScoredModel, role: str) -> Iterator[str]:
    manifest = parts.manifests[role]
    if (scored.kind, scored.digest) != (manifest.kind, manifest.digest):
        yield (
            f"{parts.paths[report]}: scores the {scored.kind} with digest {_short(scored.digest)}, "
            f"the {manifest.kind} to release has {_short(manifest.digest)}"
        )
    if scored.adapter is not None:
        yield (
            f"{parts.paths[report]}: scores the model with an adapter added; "
            "a report on the merged model would do"
        )


def _likeness_problems(parts: Parts) -> Iterator[str]:
    ours, theirs = parts.candidate, parts.bundle_scores
    at = parts.paths["bundle_scores"]
    for name in SAME:
        one, other = getattr(ours.conditions, name), getattr(theirs.conditions, name)
        if one != other:
            yield f"{at}: conditions.{name} is {other!r}, the candidate was scored with {one!r}"
    for task in sorted(ours.tasks.keys() ^ theirs.tasks.keys()):
        yield f"{at}: task {task} is in one of the two reports only"
    for task in sorted(ours.tasks.keys() & theirs.tasks.keys()):
        if ours.tasks[task].prompt_hash != theirs.tasks[task].prompt_hash:
            yield f"{at}: task {task} was asked with other prompts than the candidate's"


def _short(digest: str) -> str:
    return digest[:16]
