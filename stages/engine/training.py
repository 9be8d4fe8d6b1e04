"""One optimiser step over any number of micro-batches and processes, as MindSpore graphs.

The loss is the mean over the labelled tokens of the whole step: micro-batches and processes add up
sums of losses, of gradients and of tokens, and the division comes last. So 1x8, 2x4 and 8x1 are the
same step whatever the masks are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from artifacts.architecture import Architecture
from stages.engine.communication import all_reduces, measure
from stages.engine.groups import Mesh, data_mesh
from stages.engine.model import Decoder, causal_bias, document_bias, rotation
from stages.engine.optimizer import AdamW
from stages.engine.precision import LossScale, ScaleGradient
from stages.engine.settings import OptimizerConfig
from stages.engine.zero import ZeroAdamW

BUCKET = 1 << 18
"""Gradients smaller than this many numbers travel together: one collective costs 1 ms and more."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one process."""

    ids_BT: np.ndarray
    """Token ids, int32."""
    labels_BT: np.ndarray
    """The token to predict at each place, int32; negative (-100) where there is no loss."""
    documents_BT: np.ndarray | None = None
    """For packed rows: numbers that tell documents apart. Tokens see their own document only, and
    positions start again with each."""


@dataclass(frozen=True)
class StepResult:
    """What one optimiser step did, over all its micro-batches and processes."""

    loss: float
    """Mean over labelled tokens, nats; 0 if there were none."""
    tokens: int
    """Number of labelled tokens."""
    gradient_norm: float
    """Before clipping."""
    applied: bool
    """False if loss or gradient was not finite: then nothing was changed."""
    exchange_seconds: float = 0.0
    """What went by in exchanges between graphs, waiting for another process included."""


class Sum(nn.Cell):
    """The sum of losses; with `factor`, its gradient comes multiplied by that."""

    def __init__(self, factor: Parameter | None):
        super().__init__()
        self.factor = factor
        self.sum = ops.ReduceSum()
        self.scale_gradient = ScaleGradient()

    def construct(self, losses: Tensor) -> Tensor:
        loss = self.sum(losses)
        return loss if self.factor is None else self.scale_gradient(loss, self.factor)


class _SumLoss(nn.Cell):
    """The sum of a micro-batch's losses."""

    def __init__(self, decoder: Decoder, factor: Parameter | None):
        super().__init__()
        self.decoder, self.sum = decoder, Sum(factor)

    def construct(
        self, ids_BT: Tensor, labels_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        return self.sum(self.decoder.losses(ids_BT, labels_BT, cos, sin, bias))


class _Reduce(nn.Cell):
    """Sum tensors over the data processes; small ones travel in one piece."""

    def __init__(self, shapes: list[tuple[int, ...]], group: str | None):
        super().__init__()
        self.active = group is not None
        self.shapes = shapes
        self.sizes = [int(np.prod(shape)) for shape in shapes]
        self.buckets = _buckets(self.sizes)
        self.concat = ops.Concat()
        self.slice = ops.Slice()
        if group is not None:
            self.all_reduce = ops.AllReduce(group=group)

    def numbers(self) -> list[int]:
        """How many travel in each all-reduce."""
        return [sum(self.sizes[i] for i in bucket) for bucket in self.buckets]

    def construct(self, tensors: Any) -> Any:
        if not self.active:
            return tensors
        reduced: Any = ()
        for bucket in self.buckets:
            flat: Any = ()
            for i in bucket:
                flat = (*flat, ops.reshape(tensors[i], (-1,)))
            joined = self.all_reduce(self.concat(flat) if len(flat) > 1 else flat[0])
            begin = 0
            for i in bucket:
                part = self.slice(joined, (begin,), (self.sizes[i],))
                reduced = (*reduced, ops.reshape(part, self.shapes[i]))
                begin = begin + self.sizes[i]
        return reduced


def _buckets(sizes: list[int]) -> list[list[int]]:
    """Neighbours together until a bucket holds `BUCKET` numbers."""
    buckets: list[list[int]] = [[]]
    filled = 0
    for i, size in enumerate(sizes):
        if buckets[-1] and filled + size > BUCKET:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += size
    return buckets


class _Whole(nn.Cell):
    """Forward, backward and update in one graph: a step of a single micro-batch."""

    def __init__(self, loss: _SumLoss, reduce: _Reduce, optimizer: AdamW):
        super().__init__()
        self.loss, self.reduce, self.optimizer = loss, reduce, optimizer
        self.factor = loss.sum.factor
        self.gradient = ops.value_and_grad(loss, None, optimizer.weights)

    def construct(
        self,
        ids_BT: Tensor,
        labels_BT: Tensor,
        cos: Tensor,
        sin: Tensor,
        bias: Tensor,
        rate: Tensor,
        epsilon: Tensor,
        decay: Tensor,
    ) -> Tensor:
        loss, gradients = self.gradient(ids_BT, labels_BT, cos, sin, bias)
        sums = self.reduce((*gradients, _sums(loss, labels_BT)))
        norm = self.optimizer(sums[:-1], sums[-1][1], rate, epsilon, decay, self.factor)
        return ops.concat((sums[-1], ops.reshape(norm, (1,))))


class _Accumulate(nn.Cell):
    """Forward and backward of one micro-batch, added to the accumulators."""

    def __init__(self, loss: _SumLoss, weights: ParameterTuple, sums: ParameterTuple):
        super().__init__()
        self.loss, self.sums = loss, sums
        self.gradient = ops.value_and_grad(loss, None, weights)
        self.add = ops.AssignAdd()

    def construct(
        self, ids_BT: Tensor, labels_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        loss, gradients = self.gradient(ids_BT, labels_BT, cos, sin, bias)
        for i in range(len(gradients)):
            self.add(self.sums[i], gradients[i])
        self.add(self.sums[-1], _sums(loss, labels_BT))
        return loss


class _Apply(nn.Cell):
    """The update from the accumulators, which are empty afterwards."""

    def __init__(
        self,
        reduce: _Reduce,
        optimizer: AdamW,
        sums: ParameterTuple,
        factor: Parameter | None,
    ):
        super().__init__()
        self.reduce, self.optimizer, self.sums = reduce, optimizer, sums
        self.factor = factor
        self.assign = ops.Assign()

    def construct(self, rate: Tensor, epsilon: Tensor, decay: Tensor) -> Tensor:
        held: Any = ()
        for one in self.sums:
            held = (*held, one * 1.0)
        sums = self.reduce(held)
        norm = self.optimizer(sums[:-1], sums[-1][1], rate, epsilon, decay, self.factor)
        for one in self.sums:
            self.assign(one, ops.zeros_like(one))
        return ops.concat((sums[-1], ops.reshape(norm, (1,))))


class _Evaluate(nn.Cell):
    def __init__(self, loss: _SumLoss, reduce: _Reduce):
        super().__init__()
        self.loss, self.reduce = loss, reduce

    def construct(
        self, ids_BT: Tensor, labels_BT: Tensor, cos: Tensor, sin: Tensor, bias: Tensor
    ) -> Tensor:
        loss = self.loss(ids_BT, labels_BT, cos, sin, bias)
        return self.reduce((_sums(loss, labels_BT),))[0]


def _sums(loss: Tensor, labels_BT: Tensor) -> Tensor:
    """[sum of losses, number of labelled tokens]."""
    tokens = ops.ReduceSum()(ops.cast(labels_BT >= 0, mindspore.float32))
    return ops.stack((loss, tokens))


class Trainer:
    """Trains the parameters of a decoder that require gradients.

    With several processes, each must have joined already (`parallel.join`), and all must call
    `step` and `evaluate` alike. `mesh` says how they share; without it, `processes` of them share
    the data alone. `architecture` and `decoder` are this process's part; `counted` says by name
    what it answers for in sums over all parts. A decoder in half precision needs a `loss_scale`.
    """

    def __init__(
        self,
        architecture: Architecture,
        decoder: Decoder,
        optimizer: OptimizerConfig,
        processes: int = 1,
        mesh: Mesh | None = None,
        counted: Mapping[str, bool] | None = None,
        loss_scale: LossScale | None = None,
    ):
        self.architecture, self.decoder = architecture, decoder
        self.loss_scale = loss_scale
        self._computes_again = False
        # The name is the path in the decoder, which a wrapping cell must not lengthen.
        for name, parameter in decoder.parameters_and_names():
            parameter.name = name
        trained = [p for _, p in decoder.parameters_and_names() if p.requires_grad]
        self.names = [p.name for p in trained]
        self.updates = 0
        """Optimiser updates applied so far; the bias correction needs it."""
        self._mesh = data_mesh(processes) if mesh is None else mesh
        self._factor: Parameter | None = None
        if loss_scale is not None:
            one = Tensor(1.0, mindspore.float32)
            self._factor = Parameter(one, name="gradient_factor", requires_grad=False)
        self._loss = _SumLoss(decoder, self._factor)
        answers = None if counted is None else [counted[name] for name in self.names]
        self._optimizer = (
            ZeroAdamW(trained, optimizer, self._mesh, answers)
            if self._mesh.place.layout.zero
            else AdamW(trained, optimizer, self._mesh.model, answers)
        )
        shapes = [tuple(p.shape) for p in trained] + [(2,)]
        self._shapes = shapes
        self._reduce = _Reduce(shapes, self._mesh.data)
        self._whole: _Whole | None = None
        self._accumulate: _Accumulate | None = None
        self._apply: _Apply | None = None
        self._sums: ParameterTuple | None = None
        self._evaluate: _Evaluate | None = None
        self._constants: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._exchanged = 0.0

    def step(self, batches: Sequence[Batch], learning_rate: float) -> StepResult:
        """One optimiser step over this process's micro-batches, all of one shape."""
        if len(batches) > 1:
            return self._step_by_sums(batches, learning_rate)
        self._set_factor(batches[0])
        if self._whole is None:
            self._whole = _Whole(self._loss, self._reduce, self._optimizer)
        scalars = self._optimizer.scalars(self.updates + 1, learning_rate)
        return self._result(self._whole(*self._inputs(batches[0]), *scalars))

    def _step_by_sums(self, batches: Sequence[Batch], learning_rate: float) -> StepResult:
        self._set_factor(batches[0])
        self.accumulate_all(batches)
        self._join_stages()
        assert self._apply is not None
        return self._result(self._apply(*self._optimizer.scalars(self.updates + 1, learning_rate)))

    def _join_stages(self) -> None:
        """Sum what several stages hold, where there are several."""

    def collective_seconds(self, rows: int, micro_batches: int) -> float:
        """What the collectives inside a step's graphs take alone, with `rows` tokens a micro-batch.

        All processes must call it at the same time.
        """
        over_data = [*self._reduce.numbers(), *self._optimizer.row_numbers()]
        return measure(
            all_reduces(
                self.architecture, self._mesh, rows, micro_batches, over_data, self._computes_again
            )
        )

    def _set_factor(self, batch: Batch) -> None:
        if self.loss_scale is not None and self._factor is not None:
            factor = self.loss_scale.factor(batch.ids_BT.size)
            self._factor.set_data(Tensor(factor, mindspore.float32))

    def _result(self, found: Tensor) -> StepResult:
        loss_sum, tokens, norm = (float(value) for value in found.asnumpy())
        applied = bool(np.isfinite(norm))
        self.updates += applied
        if self.loss_scale is not None:
            self.loss_scale.after(applied)
        exchanged, self._exchanged = self._exchanged, 0.0
        return StepResult(loss_sum / max(tokens, 1.0), round(tokens), norm, applied, exchanged)

    def accumulate(self, batch: Batch) -> None:
        """Add one micro-batch's gradients to the accumulators."""
        if self._accumulate is None:
            sums = self._make_sums()
            self._accumulate = _Accumulate(self._loss, self._optimizer.weights, sums)
        self._accumulate(*self._inputs(batch))

    def accumulate_all(self, batches: Sequence[Batch]) -> None:
        """Add all micro-batches' gradients to the accumulators."""
        for batch in batches:
            self.accumulate(batch)

    def _make_sums(self) -> ParameterTuple:
        """Empty accumulators of the gradients and of [loss, tokens], and the update from them."""
        sums = ParameterTuple(
            [
                Parameter(
                    Tensor(np.zeros(shape, np.float32)),
                    name=f"accumulated.{i}",
                    requires_grad=False,
                )
                for i, shape in enumerate(self._shapes)
            ]
        )
        self._sums, self._apply = sums, _Apply(self._reduce, self._optimizer, sums, self._factor)
        return sums

    def accumulated(self) -> dict[str, np.ndarray]:
        """What the accumulators hold, by engine parameter name: this process's summed gradients."""
        assert self._sums is not None
        values = [p.asnumpy().copy() for p in self._sums]
        return dict(zip(self.names, values[:-1], strict=True))

    def drop(self) -> None:
        """Empty the accumulators."""
        assert self._sums is not None
        for one, shape in zip(self._sums, self._shapes, strict=True):
            one.set_data(Tensor(np.zeros(shape, np.float32)))

    def evaluate(self, batches: Sequence[Batch]) -> tuple[float, int]:
        """Sum of losses in nats and number of labelled tokens, over all processes."""
        if self._evaluate is None:
            self._evaluate = _Evaluate(self._loss, _Reduce([(2,)], self._mesh.data))
        total, count = 0.0, 0
        for batch in batches:
            loss_sum, tokens = self._evaluate(*self._inputs(batch)).asnumpy()
            total, count = total + float(loss_sum), count + round(float(tokens))
        return total, count

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """AdamW's running means and squares by engine parameter name.

        With ZeRO they are put together first, so every process must call it.
        """
        means, squares = self._optimizer.moments()
        return dict(zip(self.names, means, strict=True)), dict(
            zip(self.names, squares, strict=True)
        )

    def set_state(
        self, means: dict[str, np.ndarray], squares: dict[str, np.ndarray], updates: int
    ) -> None:
        """Go on from what `state` gave after `updates` updates."""
        self._optimizer.set_moments(
            [means[name] for name in self.names], [squares[name] for name in self.names]
        )
        self.updates = updates

    def _inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        ids, labels = Tensor(_int32(batch.ids_BT)), Tensor(_int32(batch.labels_BT))
        if batch.documents_BT is None:
            return (ids, labels, *self._unpacked(batch.ids_BT.shape))
        cos, sin = rotation(self.architecture, positions_in_documents(batch.documents_BT))
        bias = document_bias(batch.documents_BT, self.architecture.sliding_window)
        return ids, labels, Tensor(cos), Tensor(sin), Tensor(bias)

    def _unpacked(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        rows, length = shape
        if (rows, length) not in self._constants:
            positions = np.broadcast_to(np.arange(length), (rows, length))
            cos, sin = rotation(self.architecture, positions)
            self._constants[rows, length] = (
                Tensor(cos),
                Tensor(sin),
                Tensor(causal_bias(length, self.architecture.sliding_window)),
            )
        return self._constants[rows, length]


def positions_in_documents(documents_BT: np.ndarray) -> np.ndarray:
    """Position of each token in its own document, for rows of documents laid end to end."""
    time = np.arange(documents_BT.shape[1])
    changes = np.ones(documents_BT.shape, bool)
    changes[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    begins = np.maximum.accumulate(np.where(changes, time, 0), axis=1)
    return time - begins


def _int32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.int32)
