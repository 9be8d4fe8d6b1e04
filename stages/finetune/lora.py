"""An adapter's first values: A random, B zero, so that training starts at the base."""

from collections.abc import Mapping

import numpy as np

from artifacts.adapter import Adapter, Pair
from artifacts.errors import BadInput
from artifacts.lora_spec import LoraSpec
from artifacts.validation import shown
from stages.finetune.config import LoraConfig

Shape = tuple[int, int]


def initial_adapter(shapes: Mapping[str, tuple[Shape, Shape]], seed: int) -> dict[str, Pair]:
    """Hugging Face module name -> (A, B) float32, drawn from a stream of its own for each module.

    `shapes` are theirs, in the model's order. A is uniform within 1 / sqrt(in): Kaiming's with
    a = sqrt(5), as peft draws it. B is zero.
    """
    pairs = {}
    for index, (module, (a, b)) in enumerate(shapes.items()):
        bound = 1 / np.sqrt(a[1])
        draw = np.random.default_rng([seed, index]).uniform(-bound, bound, a)
        pairs[module] = (draw.astype(np.float32), np.zeros(b, np.float32))
    return pairs


def chosen_spec(config: LoraConfig, start: Adapter | None) -> LoraSpec:
    """Where pairs stand: as the config says, or as the adapter has them that is trained further.

    Raises BadInput if the two differ; a config that leaves `lora` out says nothing of it.
    """
    wanted = config.spec()
    if start is None:
        return wanted
    found = {name: getattr(start, name) for name in vars(wanted)}
    if config != LoraConfig.model_validate({}) and found != vars(wanted):
        name = next(name for name in found if found[name] != vars(wanted)[name])
        raise BadInput(
            f"finetune.lora: {name} is {shown(vars(wanted)[name])}; the adapter to start from has "
            f"{shown(found[name])}, leave lora out to take its own"
        )
    return LoraSpec(**found)
