"""A step over stages that each hold a run of layers: one forward, one backward (1F1B).

Each stage has a graph for the way forward and one for the way back, which computes the stage again
from what came in; the last stage has one for both. What passes between stages is the stream [N, D]
and its gradient. A stage that waits for the first gradient has sent as many micro-batches ahead as
there are stages behind it, so no stage holds more than there are stages (PipeDream-flush, as in
Megatron-LM, arXiv 2104.04473).
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from artifacts.architecture import Architecture
from stages.engine.groups import Mesh, receive, send, summed
from stages.engine.model import Decoder
from stages.engine.precision import LossScale
from stages.engine.settings import OptimizerConfig
from stages.engine.training import Batch, StepResult, Sum, Trainer, _sums


class _Forward(nn.Cell):
    """The stage's result: from tokens at the first stage, from the stream elsewhere."""

    def __init__(self, decoder: Decoder, is_first: bool):
        super().__init__()
        self.decoder, self.is_first = decoder, is_first

    def construct(self, came: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        x = self.decoder.embed(came) if self.is_first else came
        return self.decoder.through(x, cos, sin, bias)


class _Along(nn.Cell):
    """sum(result * direction), whose gradients are those that a gradient `direction` brings."""

    def __init__(self, forward: _Forward):
        super().__init__()
        self.forward = forward
        self.sum = ops.ReduceSum()

    def construct(
        self, came: Tensor, direction: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        return self.sum(self.forward(came, cos, sin, bias) * direction)


class Backward(nn.Cell):
    """From the result's gradient to that of what came in; the weights' are added to the sums."""

    def __init__(self, forward: _Forward, weights: ParameterTuple, sums: ParameterTuple):
        super().__init__()
        self.is_first, self.sums = forward.is_first, sums
        self.along = _Along(forward)
        position = None if forward.is_first else 0
        self.gradient = ops.grad(self.along, position, weights)
        self.add = ops.AssignAdd()

    def construct(
        self, came: Tensor, direction: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        found = self.gradient(came, direction, cos, sin, bias)
        to_came, gradients = (direction, found) if self.is_first else found
        for i in range(len(gradients)):
            self.add(self.sums[i], gradients[i])
        return to_came


class _LastLoss(nn.Cell):
    def __init__(self, decoder: Decoder, factor: Parameter | None):
        super().__init__()
        self.decoder, self.sum = decoder, Sum(factor)

    def construct(
        self, came: Tensor, labels_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        return self.sum(self.decoder.end(self.decoder.through(came, cos, sin, bias), labels_BT))


class LossAndBackward(nn.Cell):
    """The last stage's way there and back at once; the loss's sums are the last of `sums`."""

    def __init__(self, loss: _LastLoss, weights: ParameterTuple, sums: ParameterTuple):
        super().__init__()
        self.loss, self.sums = loss, sums
        self.gradient = ops.value_and_grad(loss, 0, weights)
        self.add = ops.AssignAdd()

    def construct(
        self, came: Tensor, labels_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        loss, (to_came, gradients) = self.gradient(came, labels_BT, cos, sin, bias)
        for i in range(len(gradients)):
            self.add(self.sums[i], gradients[i])
        self.add(self.sums[-1], _sums(loss, labels_BT))
        return to_came


class _LastSums(nn.Cell):
    """[sum of losses, labelled tokens] of one micro-batch."""

    def __init__(self, loss: _LastLoss):
        super().__init__()
        self.loss = loss

    def construct(
        self, came: Tensor, labels_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        return _sums(self.loss(came, labels_BT, cos, sin, bias), labels_BT)


class PipelineTrainer(Trainer):
    """`Trainer` on one stage of several; every stage is given the same batches."""

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
        assert mesh.pipeline is not None
        self._group, self._place = mesh.pipeline, mesh.place
        sums, weights = self._make_sums(), self._optimizer.weights
        self._forward = _Forward(decoder, mesh.place.first)
        self._computes_again = not mesh.place.last
        if mesh.place.last:
            last = _LastLoss(decoder, self._factor)
            self._last, self._measure = LossAndBackward(last, weights, sums), _LastSums(last)
        else:
            self._backward = Backward(self._forward, weights, sums)
        self._tied = self.names.index("embedding") if mesh.ends and decoder.tied_head else None

    def step(self, batches: Sequence[Batch], learning_rate: float) -> StepResult:
        """One optimiser step over this data share's micro-batches, all of one shape."""
        return self._step_by_sums(batches, learning_rate)

    def _join_stages(self) -> None:
        """Sum over stages what several hold: the loss's sums, the gradient of a tied embedding.

        Not in the graph of the update: stages' graphs differ, and so would the order in which they
        meet, each waiting for the other.
        """
        assert self._sums is not None
        self._join(self._sums[-1], self._mesh.pipeline)
        if self._tied is not None:
            self._join(self._sums[self._tied], self._mesh.ends)

    def _join(self, held: Parameter, group: str | None) -> None:
        begin = time.perf_counter()
        held.set_data(Tensor(summed(held.asnumpy(), group)))
        self._exchanged += time.perf_counter() - begin

    def accumulate(self, batch: Batch) -> None:
        """Add one micro-batch's gradients to the accumulators."""
        self.accumulate_all([batch])

    def accumulate_all(self, batches: Sequence[Batch]) -> None:
        """Add all micro-batches' gradients to the accumulators, each passing all stages."""
        behind = self._place.layout.pipeline - 1 - self._place.stage
        ahead = min(behind, len(batches))
        waiting: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        for batch in batches[:ahead]:
            waiting.append(self._on(batch))
        for batch in batches[ahead:]:
            if self._place.last:
                self._turn(batch)
            else:
                waiting.append(self._on(batch))
                self._back(*waiting.pop(0))
        for held in waiting:
            self._back(*held)

    def evaluate(self, batches: Sequence[Batch]) -> tuple[float, int]:
        """Sum of losses in nats and number of labelled tokens, over all processes."""
        total = np.zeros(2, np.float32)
        for batch in batches:
            if self._place.last:
                total += self._measure(*self._last_inputs(batch)).asnumpy()
            else:
                self._on(batch)
        loss_sum, tokens = summed(summed(total, self._group), self._mesh.data)
        return float(loss_sum), round(float(tokens))

    def _on(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Forward: the stage's result goes on. Returns what the way back needs."""
        ids, _, *constants = self._inputs(batch)
        came = ids if self._place.first else self._receive(batch, self._place.stage - 1)
        self._send(self._forward(came, *constants), self._place.stage + 1)
        return came, tuple(constants)

    def _back(self, came: Tensor, constants: tuple[Tensor, ...]) -> None:
        rows, width = constants[0].shape[0], self.architecture.hidden_size
        peer = self._place.at(stage=self._place.stage + 1)
        direction = self._received((rows, width), peer)
        to_came = self._backward(came, direction, *constants)
        if not self._place.first:
            self._send(to_came, self._place.stage - 1)

    def _turn(self, batch: Batch) -> None:
        """At the last stage: forward and straight back."""
        self._send(self._last(*self._last_inputs(batch)), self._place.stage - 1)

    def _last_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        _, labels, *constants = self._inputs(batch)
        return self._receive(batch, self._place.stage - 1), labels, *constants

    def _receive(self, batch: Batch, stage: int) -> Tensor:
        shape = (batch.ids_BT.size, self.architecture.hidden_size)
        return self._received(shape, self._place.at(stage=stage))

    def _received(self, shape: tuple[int, ...], rank: int) -> Tensor:
        begin = time.perf_counter()
        found = receive(shape, rank, self._group)
        self._exchanged += time.perf_counter() - begin
        return found

    def _send(self, x: Tensor, stage: int) -> None:
        begin = time.perf_counter()
        send(x, self._place.at(stage=stage), self._group)
        self._exchanged += time.perf_counter() - begin
