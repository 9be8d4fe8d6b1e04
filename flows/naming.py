"""The steps of a chain of artifacts by the names that a run gives them."""

from collections.abc import Mapping, Sequence

from artifacts.lineage import Ancestor
from artifacts.manifest import Manifest
from flows.lifecycle import FINETUNE_FULL, STEPS

MADE_LIKE = {FINETUNE_FULL.name: "merge"}
"""Stages that stand in the place of another: both make the tuned model."""


def step_names(chain: Sequence[Ancestor]) -> dict[str, str]:
    """Identity -> step, such as evaluate-tuned; where two would be called alike, with digits."""
    manifests = {one.identity: one.manifest for one in chain if one.manifest}
    names: dict[str, str] = {}
    for identity, manifest in manifests.items():
        name = _name(manifest, manifests)
        names[identity] = f"{name} {identity[:8]}" if name in names.values() else name
    return names


def _name(manifest: Manifest, manifests: Mapping[str, Manifest]) -> str:
    """The step whose stage, and whose inputs' stages, are the artifact's; else its stage."""
    stages = {step.name: step.spec.name for step in STEPS}
    found = [step for step in STEPS if step.spec.name == manifest.stage]
    for step in found:
        made_by = {
            role: manifests[entry.identity].stage
            for role, entry in manifest.inputs.items()
            if role in step.inputs and entry.identity in manifests
        }
        if all(MADE_LIKE.get(made, made) == stages[step.inputs[r]] for r, made in made_by.items()):
            return step.name
    return found[0].name if len(found) == 1 else manifest.stage
