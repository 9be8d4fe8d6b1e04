"""W + scaling * B @ A in float32, then cast back to the type the base is stored in."""

import numpy as np

from artifacts.adapter import Adapter
from artifacts.errors import BadInput
from artifacts.hf_model import NUMPY, HFModel


class Merger:
    """Gives a base's tensors with the adapter in them, and counts what that changed.

    The sum is taken in float32 whatever the base's type: in bf16 most changes of a fine-tune are
    smaller than the distance between two numbers.
    """

    def __init__(self, base: HFModel, adapter: Adapter):
        self._base, self._adapter = base, adapter
        self._dtype = NUMPY[base.dtype]
        self.max_abs_change = 0.0
        self.changed = 0
        self.weights = 0

    def __call__(self, name: str) -> np.ndarray:
        """One tensor, float32; call once for each."""
        module = name.removesuffix(".weight")
        weight = self._base.weights[name]
        if module not in self._adapter.tensors or not name.endswith(".weight"):
            return weight
        merged = weight + self._adapter.delta(module)
        stored = merged.astype(self._dtype).astype(np.float32)
        change = np.abs(stored - weight)
        self.max_abs_change = max(self.max_abs_change, float(change.max()))
        self.changed += int(np.count_nonzero(change))
        self.weights += change.size
        return merged

    def check_changed(self) -> None:
        """Raise BadInput if, all tensors asked for, no stored weight differs from the base's."""
        if self.changed == 0:
            raise BadInput(
                f"{self._adapter.where}: changes no weight of the base as it is stored "
                f"({self._base.dtype}); an adapter that was trained, or a base in fp32, would"
            )


def check_says_something(adapter: Adapter) -> None:
    """Raise BadInput for an adapter that has not learned: B @ A is zero in every module."""
    if not any(adapter.delta(module).any() for module in adapter.tensors):
        raise BadInput(f"{adapter.where}: changes nothing, B @ A is zero everywhere")
