"""A step that keeps only what goes into each layer, and computes the layer again on the way back.

Activation checkpointing (Chen et al., arXiv 1604.06174). All layers share one graph for the way
forward and one for the way back, whose parameters stand for those of one layer after another. With
a graph for each layer, MindSpore's kernels on CPU would keep memory of their own for every layer;
and so it is compiled once, however many layers there are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from artifacts.architecture import Architecture
from stages.engine.groups import Mesh
from stages.engine.model import Decoder
from stages.engine.pipeline import Backward, LossAndBackward
from stages.engine.precision import LossScale
from stages.engine.settings import OptimizerConfig
from stages.engine.training import Batch, StepResult, Sum, Trainer


class _Embed(nn.Cell):
    is_first = True

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder

    def construct(self, ids_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        return self.decoder.embed(ids_BT)


class _AnyLayer(nn.Cell):
    is_first = False

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder, self.layer = decoder, decoder.another_layer()

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        cos, sin, biases = self.decoder.repeated(cos, sin, bias)
        return self.layer(x, cos, sin, self.decoder.half_turn_EE, biases)


class _EndLoss(nn.Cell):
    def __init__(self, decoder: Decoder, factor: Parameter | None):
        super().__init__()
        self.decoder, self.sum = decoder, Sum(factor)

    def construct(
        self, x: Tensor, labels_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        return self.sum(self.decoder.end(x, labels_BT))


class RecomputeTrainer(Trainer):
    """`Trainer` in the memory of one layer's activations, and of the stream [N, D] for each."""

    def __init__(
        self,
        architecture: Architecture,
        decoder: Decoder,
        optimizer: OptimizerConfig,
        mesh: Mesh,
        counted: Mapping[str, bool],
        loss_scale: LossScale | None = None,
    ):
        super().__init__(
            architecture, decoder, optimizer, mesh=mesh, counted=counted, loss_scale=loss_scale
        )
        self._computes_again = True
        self._all_sums = self._make_sums()
        self._layers = [self._named(f"layers.{i}.") for i in range(architecture.layers)]
        self._any_layer = _AnyLayer(decoder)
        self._weights = _as_parameters(self._any_layer.layer, "any_layer")
        self._layer_sums = ParameterTuple(
            Parameter(Tensor(np.zeros(p.shape, np.float32)), f"any_layer_sum.{i}", False)
            for i, p in enumerate(self._weights)
        )
        self._layer_backward = Backward(self._any_layer, self._weights, self._layer_sums)
        self._embed = _Embed(decoder)
        self._embed_backward = Backward(self._embed, *self._of(self._named("embedding")))
        ends = self._named("norm.", "embedding" if decoder.tied_head else "head")
        weights, sums = self._of(ends)
        end_sums = ParameterTuple([*sums, self._all_sums[-1]])
        self._end = LossAndBackward(_EndLoss(decoder, self._factor), weights, end_sums)

    def step(self, batches: Sequence[Batch], learning_rate: float) -> StepResult:
        """One optimiser step over this process's micro-batches, all of one shape."""
        return self._step_by_sums(batches, learning_rate)

    def accumulate(self, batch: Batch) -> None:
        """Add one micro-batch's gradients to the accumulators."""
        ids, labels, *constants = self._inputs(batch)
        x, kept = self._embed(ids, *constants), []
        for layer in self._layers:
            kept.append(x)
            self._take_up(layer)
            x = self._any_layer(x, *constants)
        direction = self._end(x, labels, *constants)
        for layer in reversed(self._layers):
            self._take_up(layer)
            direction = self._layer_backward(kept.pop(), direction, *constants)
        self._embed_backward(ids, direction, *constants)

    def _take_up(self, layer: list[int]) -> None:
        """Let the shared parameters stand for this layer's: the same memory, no copy."""
        for i, weight, held in zip(layer, self._weights, self._layer_sums, strict=True):
            weight.set_data(self._optimizer.weights[i])
            held.set_data(self._all_sums[i])

    def _named(self, *beginnings: str) -> list[int]:
        return [i for i, name in enumerate(self.names) if name.startswith(beginnings)]

    def _of(self, found: list[int]) -> tuple[ParameterTuple, ParameterTuple]:
        weights = ParameterTuple([self._optimizer.weights[i] for i in found])
        return weights, ParameterTuple([self._all_sums[i] for i in found])


def _as_parameters(layer: nn.Cell, name: str) -> ParameterTuple:
    found = [parameter for _, parameter in layer.parameters_and_names()]
    for i, parameter in enumerate(found):
        parameter.name = f"{name}.{i}"
    return ParameterTuple(found)
