"""Products in half precision; all else in float32.

Weights, their gradients, AdamW's state, the residual stream, norms, softmax, the head with its loss
and every sum over processes are float32. The matrix products of the layers take both factors in
half precision and give their result back in float32, forward and backward.
"""

from dataclasses import dataclass
from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from artifacts.errors import BadInput
from stages.engine.settings import NO_BF16, Precision

DTYPES = {"fp16": mindspore.float16, "bf16": mindspore.bfloat16}
FIRST_SCALE = 2.0**16
LARGEST_SCALE = 2.0**24
STEPS_TO_DOUBLE = 1000
"""Steps without an overflow after which a dynamic scale is tried at twice its value."""


class HalfProduct(nn.Cell):
    """A product of float32 tensors, made in half precision; so are those of its gradients."""

    def __init__(self, product: Any, dtype: Any):
        super().__init__()
        self.product, self.dtype = product, dtype

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.product(ops.cast(x, self.dtype), ops.cast(y, self.dtype))
        return ops.cast(found, mindspore.float32)


def in_precision(product: Any, precision: Precision) -> Any:
    """`product` itself in fp32, else the same in half precision."""
    return product if precision == "fp32" else HalfProduct(product, DTYPES[precision])


def check_device(precision: Precision, device: str) -> None:
    """Raise BadInput for what a device cannot do."""
    if precision == "bf16" and device == "CPU":
        raise BadInput(f"pretrain.precision: {NO_BF16}")


class ScaleGradient(nn.Cell):
    """x itself; its gradient is multiplied by `factor`."""

    def construct(self, x: Tensor, factor: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, factor: Tensor, out: Tensor, dout: Tensor) -> Any:
        return dout * factor, ops.zeros_like(factor)


@dataclass
class LossScale:
    """What the mean loss's gradient is multiplied by on its way through half precision.

    A dynamic one is halved whenever a gradient was not finite, and doubled after `STEPS_TO_DOUBLE`
    steps in a row that were.
    """

    value: float = FIRST_SCALE
    is_dynamic: bool = True
    good_steps: int = 0
    """Steps in a row without an overflow, since the value last changed."""

    def factor(self, rows: int) -> float:
        """For the *sum* of the losses of a micro-batch of `rows` tokens.

        A power of two where the value is one, so that dividing by it again is exact.
        """
        return float(self.value / (1 << (rows - 1).bit_length()))

    def after(self, applied: bool) -> None:
        """What a step's end makes of it."""
        if not self.is_dynamic:
            return
        self.good_steps += 1
        if not applied:
            self.value, self.good_steps = max(self.value / 2, 1.0), 0
        elif self.good_steps == STEPS_TO_DOUBLE:
            self.value, self.good_steps = min(self.value * 2, LARGEST_SCALE), 0
