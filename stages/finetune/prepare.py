"""Everything that training needs, looked at before MindSpore is loaded; the same on every rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artifacts.adapter import Adapter, read_adapter
from artifacts.errors import BadInput
from artifacts.hf_model import HFModel
from artifacts.lora_spec import LoraSpec
from artifacts.manifest import read_manifest
from stages.finetune.config import FinetuneConfig
from stages.finetune.dataset import Batches, Dataset, Encoded, Encoder, alone, build_dataset, packed
from stages.finetune.lora import chosen_spec
from stages.finetune.source import read_base, read_data

HELD_OUT_STREAM = 1
"""Beside the seed, so that what is held out is drawn apart from everything else."""


@dataclass(frozen=True)
class Prepared:
    """A training run before its first step."""

    model: HFModel
    encoder: Encoder
    dataset: Dataset
    held_out: list[Encoded]
    """Examples that are not learned from."""
    batches: Batches
    steps: int
    start: Adapter | None
    """The adapter that is trained further."""
    spec: LoraSpec


def prepare(config: FinetuneConfig, inputs: Mapping[str, Path]) -> Prepared:
    """Read model, adapter and data. Raises BadInput naming everything that does not fit."""
    model, encoder = read_base(inputs["model"], config.max_length)
    start = _start(inputs)
    spec = chosen_spec(config.lora, start)
    shape = model.architecture
    if config.method == "lora" and not spec.shapes(shape):
        raise BadInput(f"finetune.lora.targets: is {spec.targets!r}; the base has no such linear")
    if config.last_layers is not None and config.last_layers > shape.layers:
        raise BadInput(
            f"finetune.last_layers: is {config.last_layers}; the base has {shape.layers} layers"
        )
    examples = read_data(config, inputs.get("corpus"))
    dataset = build_dataset(examples, config.template, encoder, config.max_length)
    learned, held_out = _divided(dataset.examples, config)
    rows = [alone(example) for example in learned]
    if config.packing:
        rows = packed(learned, config.max_length - 1, config.seed)
    batches = Batches(rows, config.batch.global_size, config.seed, encoder.eos_id)
    steps = config.step_count(len(rows)) if rows else 0
    return Prepared(model, encoder, dataset, held_out, batches, steps, start, spec)


def _divided(
    examples: list[Encoded], config: FinetuneConfig
) -> tuple[list[Encoded], list[Encoded]]:
    """What is learned from, and what is held out: at least one of each, if two of them differ.

    Equal examples stay on one side, or what is held out would have been learned by heart.
    """
    groups: dict[bytes, list[int]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(example.ids.tobytes(), []).append(index)
    if not config.held_out or len(groups) < 2:
        return examples, []
    count = min(max(1, round(config.held_out * len(examples))), len(examples) - 1)
    order = np.random.default_rng([config.seed, HELD_OUT_STREAM]).permutation(len(groups))
    members = list(groups.values())
    drawn = [members[place] for place in order]
    chosen: set[int] = set()
    for group in drawn:
        if len(chosen) + len(group) <= count:
            chosen.update(group)
    if not chosen:  # every example has more copies than should be held out
        fewest = min(drawn, key=len)
        chosen.update(fewest)
    kept = [example for index, example in enumerate(examples) if index not in chosen]
    return kept, [examples[index] for index in sorted(chosen)]


def _start(inputs: Mapping[str, Path]) -> Adapter | None:
    """The adapter that is trained further, if one is given; it must belong to this base."""
    if "adapter" not in inputs:
        return None
    start = read_adapter(inputs["adapter"])
    start.check_base(read_manifest(inputs["model"]))
    return start
