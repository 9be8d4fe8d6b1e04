"""AdamW over MindSpore's fused kernel, which knows neither bias correction nor clipping."""

import math
from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from stages.engine.settings import OptimizerConfig


class AdamW(nn.Cell):
    """Clip by global norm, then one AdamW step. A gradient that is not finite changes nothing.

    Called with the gradients of the *sum* of the losses and the number of labelled tokens. With
    `group`, its processes hold parts of one model: the norm is that of the whole, to which each
    adds what `counted` says of its parameters.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        config: OptimizerConfig,
        group: str | None = None,
        counted: Sequence[bool] | None = None,
    ):
        super().__init__()
        self.config = config
        self.weights = ParameterTuple(parameters)
        self.is_part = group is not None
        if group is not None:
            self.all_reduce = ops.AllReduce(group=group)
            # Tensors, not numbers: so all processes run the same graph.
            answers = [True] * len(parameters) if counted is None else counted
            self.counted = tuple(Tensor(float(one), mindspore.float32) for one in answers)
        self.decays = tuple(p.ndim >= 2 for p in parameters)
        self.beta1 = Tensor(config.beta1, mindspore.float32)
        self.beta2 = Tensor(config.beta2, mindspore.float32)
        self.one, self.zero = Tensor(1.0, mindspore.float32), Tensor(0.0, mindspore.float32)
        self.clip_norm = Tensor(config.clip_norm, mindspore.float32)
        self.kernel = ops.AdamWeightDecay()
        self.dot = ops.MatMul(transpose_b=True)
        self.scaled = ops.MulNoNan()
        self._make_state()

    def _make_state(self) -> None:
        self.means = ParameterTuple([_zeros_like(p, "adam_mean") for p in self.weights])
        self.squares = ParameterTuple([_zeros_like(p, "adam_square") for p in self.weights])

    def moments(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The running means and squares of every parameter."""
        return (
            [p.asnumpy().copy() for p in self.means],
            [p.asnumpy().copy() for p in self.squares],
        )

    def set_moments(self, means: Sequence[np.ndarray], squares: Sequence[np.ndarray]) -> None:
        """Go on from what `moments` gave."""
        for held, values in ((self.means, means), (self.squares, squares)):
            for parameter, value in zip(held, values, strict=True):
                parameter.set_data(Tensor(np.array(value, np.float32)))

    def row_numbers(self) -> list[int]:
        """How many numbers travel over the data processes in each all-reduce of an update."""
        return []

    def scalars(self, update: int, learning_rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """The kernel's rate, epsilon and decay for update number `update`, the first being 1.

        With c1 = 1 - beta1^t and c2 = 1 - beta2^t,
        lr * ((m/c1) / (sqrt(v/c2) + eps) + decay*w) =
        rate * (m / (sqrt(v) + eps*sqrt(c2)) + (decay*lr/rate) * w), rate = lr * sqrt(c2)/c1.
        Tensors, since a Python number would be baked into the graph.
        """
        c1 = 1.0 - self.config.beta1**update
        c2 = math.sqrt(1.0 - self.config.beta2**update)
        return (
            Tensor(learning_rate * c2 / c1, mindspore.float32),
            Tensor(self.config.eps * c2, mindspore.float32),
            Tensor(self.config.weight_decay * c1 / c2, mindspore.float32),
        )

    def construct(
        self,
        gradients: Any,
        tokens: Tensor,
        rate: Tensor,
        epsilon: Tensor,
        decay: Tensor,
        factor: Tensor | None = None,
    ) -> Tensor:
        """One step; returns the norm of the mean loss's gradient before clipping, shape ().

        `factor` is what the gradients have been multiplied by, if anything.
        """
        # A dot product of the gradient with itself: faster on CPU than squares and a sum.
        total = 0.0
        for i in range(len(gradients)):
            flat = ops.reshape(gradients[i], (1, -1))
            square = self.dot(flat, flat)
            total = total + (square * self.counted[i] if self.is_part else square)
        if self.is_part:
            total = self.all_reduce(total)
        share = 1.0 / ops.maximum(tokens, self.one)
        if factor is not None:
            share = share / factor
        norm = ops.sqrt(ops.reshape(total, ())) * share
        scale = share * ops.minimum(self.clip_norm / (norm + 1e-6), self.one)
        finite = ops.isfinite(norm)
        # Kept betas and a rate of 0 make the kernel leave everything bitwise as it was.
        beta1 = ops.select(finite, self.beta1, self.one)
        beta2 = ops.select(finite, self.beta2, self.one)
        rate = ops.select(finite, rate, self.zero)
        scale = ops.select(finite, scale, self.zero)  # times MulNoNan gives 0 even for NaN
        self.update(gradients, scale, rate, beta1, beta2, epsilon, decay)
        return norm

    def update(
        self,
        gradients: Any,
        scale: Tensor,
        rate: Tensor,
        beta1: Tensor,
        beta2: Tensor,
        epsilon: Tensor,
        decay: Tensor,
    ) -> None:
        """The kernel on every parameter."""
        for i in range(len(self.weights)):
            self.kernel(
                self.weights[i],
                self.means[i],
                self.squares[i],
                rate,
                beta1,
                beta2,
                epsilon,
                decay if self.decays[i] else self.zero,
                self.scaled(gradients[i], scale),
            )


def _zeros_like(parameter: Parameter, prefix: str) -> Parameter:
    zeros = Tensor(np.zeros(parameter.shape, np.float32))
    return Parameter(zeros, name=f"{prefix}.{parameter.name}", requires_grad=False)
