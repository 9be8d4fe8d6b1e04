"""W + sum of weight * scaling * B @ A in float32, then cast back to the type of the base."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.adapter import Adapter
from artifacts.errors import BadInput
from artifacts.hf_model import NUMPY, HFModel


@dataclass(frozen=True)
class Weighted:
    """An adapter and the factor on its change."""

    adapter: Adapter
    weight: float = 1.0

    def delta(self, module: str) -> np.ndarray:
        """What is added to one module's weight, float32."""
        found = self.adapter.delta(module)
        return found if self.weight == 1.0 else found * np.float32(self.weight)


class Merger:
    """Gives a base's tensors with the adapters in them, and counts what that changed.

    The sum is taken in float32 whatever the base's type: in bf16 most changes of a fine-tune are
    smaller than the distance between two numbers.
    """

    def __init__(self, base: HFModel, adapters: Sequence[Weighted]):
        self._base, self._adapters = base, adapters
        self._dtype = NUMPY[base.dtype]
        self.max_abs_change = 0.0
        self.changed = 0
        self.weights = 0

    def __call__(self, name: str) -> np.ndarray:
        """One tensor, float32 where an adapter stands on it; call once for each."""
        module = name.removesuffix(".weight")
        standing = [each for each in self._adapters if module in each.adapter.tensors]
        if not standing or not name.endswith(".weight"):
            return self._base.weights.raw(name)
        weight = self._base.weights[name]
        merged = weight
        for each in standing:
            merged = merged + each.delta(module)
        stored = merged.astype(self._dtype).astype(np.float32)
        change = np.abs(stored - weight)
        self.max_abs_change = max(self.max_abs_change, float(change.max()))
        self.changed += int(np.count_nonzero(change))
        self.weights += change.size
        return merged

    def check_changed(self) -> None:
        """Raise BadInput if, all tensors asked for, no stored weight differs from the base's."""
        if self.changed == 0:
            places = ", ".join(each.adapter.where for each in self._adapters)
            raise BadInput(
                f"{places}: changes no weight of the base as it is stored "
                f"({self._base.dtype}); an adapter that was trained, or a base in fp32, would"
            )


def check_says_something(adapter: Adapter) -> None:
    """Raise BadInput for an adapter that has not learned: B @ A is zero in every module."""
    if not any(adapter.delta(module).any() for module in adapter.tensors):
        raise BadInput(f"{adapter.where}: changes nothing, B @ A is zero everywhere")


def side_by_side(
    adapters: Sequence[Weighted],
) -> tuple[dict[str, tuple[int, float]], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The weighted sum as one adapter: ranks add up, factors go into B.

    Gives module -> (rank, scaling 1) and module -> (A, B).
    """
    tensors: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for module in dict.fromkeys(m for each in adapters for m in each.adapter.tensors):
        standing = [each for each in adapters if module in each.adapter.tensors]
        factors = [each.weight * each.adapter.scaling_of(module) for each in standing]
        a = np.concatenate([each.adapter.tensors[module][0] for each in standing])
        parts = [
            each.adapter.tensors[module][1] * np.float32(factor)
            for each, factor in zip(standing, factors, strict=True)
        ]
        tensors[module] = a, np.concatenate(parts, axis=1)
    return {module: (len(a), 1.0) for module, (a, _) in tensors.items()}, tensors
