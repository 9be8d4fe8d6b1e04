"""Why something may not be released. Everything is bound by digest, nothing by name or date."""

from collections.abc import Iterator

from artifacts.eval_report import Item, ScoredModel
from stages.release.parts import Parts

SHOWN = 8
"""Items that are named; the rest is counted."""

SAME = ("sampling_hash", "tokenizer_hash", "chat_template", "bos", "max_length", "lm_eval")
"""Conditions in which model and bundle must have been scored alike."""


def problems_with(parts: Parts) -> list[str]:
    """A sentence for every reason against; empty if the release may be made."""
    bindings = [*_decision_problems(parts), *_binding_problems(parts)]
    if bindings:
        return bindings  # scores of other things say nothing about these
    return [*_likeness_problems(parts), *choice_problems(parts.candidate_items, parts.bundle_items)]


def _decision_problems(parts: Parts) -> Iterator[str]:
    decision, path = parts.decision, parts.paths["decision"]
    if decision.outcome != "approved":
        failed = [f"{rule.rule} on {rule.task}" for rule in decision.rules if not rule.passed]
        yield f"{path}: the gate rejected this model ({', '.join(failed)}); only approved ones ship"
    if decision.candidate.report_digest != parts.manifests["candidate"].digest:
        yield (
            f"{path}: is about the report with digest {_short(decision.candidate.report_digest)}, "
            f"the candidate's is {_short(parts.manifests['candidate'].digest)}"
        )


def _binding_problems(parts: Parts) -> Iterator[str]:
    model, bundle = parts.manifests["model"], parts.manifests["bundle"]
    yield from _scored(parts, "candidate", parts.candidate.model, "model")
    yield from _scored(parts, "bundle_scores", parts.bundle_scores.model, "bundle")
    made_from = bundle.inputs.get("model")
    if made_from is None or made_from.digest != model.digest:
        found = _short(made_from.digest) if made_from else "none"
        yield (
            f"{parts.paths['bundle']}: was made from the model with digest {found}, "
            f"this one has {_short(model.digest)}"
        )
    if parts.agreement.passed is not True:
        yield f"{parts.paths['bundle'] / 'agreement.json'}: does not say that the proof passed"


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


def choice_problems(ours: list[Item], theirs: list[Item]) -> list[str]:
    """Name the items on which the bundle chooses otherwise than the model; none may be."""
    if not ours:
        return ["the reports hold no item, so nothing says that model and bundle choose alike"]
    one = {(item.task, item.id): item.choice for item in ours}
    other = {(item.task, item.id): item.choice for item in theirs}
    problems = [
        f"item {item_id} of {task} is in one of the two reports only"
        for task, item_id in sorted(one.keys() ^ other.keys())
    ]
    problems += [
        f"item {key[1]} of {key[0]}: the bundle chooses {other[key]}, the model {one[key]}"
        for key in sorted(one.keys() & other.keys())
        if one[key] != other[key]
    ]
    if len(problems) > SHOWN:
        problems[SHOWN:] = [f"and {len(problems) - SHOWN} more items differ"]
    return problems


def _short(digest: str) -> str:
    return digest[:16]
