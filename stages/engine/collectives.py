"""The cells by which tensor-parallel processes agree, each with the gradient that belongs to it.

MindSpore's own gradient of an all-reduce is another all-reduce, which would count every gradient
once a process. Who enters a divided product holds the same input everywhere and gets a part of its
gradient; who leaves it holds a part of the sum and gets the whole gradient. So the two are
conjugate: one sums backward only, the other forward only (Megatron-LM, arXiv 1909.08053).

Shape suffixes as in `cells`; T = number of tensor processes.
"""

from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops


class CopyTo(nn.Cell):
    """The same input to every process; their gradients are summed."""

    def __init__(self, group: str):
        super().__init__()
        self.all_reduce = ops.AllReduce(group=group)

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> Any:
        return (self.all_reduce(dout),)


class ReduceFrom(nn.Cell):
    """The sum of what the processes hold; each gets its whole gradient."""

    def __init__(self, group: str):
        super().__init__()
        self.all_reduce = ops.AllReduce(group=group)

    def construct(self, x: Tensor) -> Tensor:
        return self.all_reduce(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> Any:
        return (dout,)


class Slice:
    """One process's slice of the vocabulary, and the group that holds it all."""

    def __init__(self, group: str, index: int, count: int, rows: int):
        self.group, self.count = group, count
        # Tensors, not numbers: so all processes run the same graph.
        self.begin = Tensor(index * rows, mindspore.int32)
        self.own = Tensor(np.eye(count, dtype=np.float32)[index].reshape(-1, 1, 1))


class SplitGather(nn.Cell):
    """Rows of an embedding whose vocabulary is divided: what others hold comes by the sum."""

    def __init__(self, part: Slice):
        super().__init__()
        self.begin = part.begin
        self.gather = ops.Gather()
        self.reduce = ReduceFrom(part.group)

    def construct(self, w_VD: Tensor, ids_N: Tensor, axis: int) -> Tensor:
        safe, inside = _own_rows(ids_N, self.begin, w_VD.shape[0])
        return self.reduce(self.gather(w_VD, safe, axis) * ops.reshape(inside, (-1, 1)))


class SplitRowLoss(nn.Cell):
    """`cells.RowLoss` with a divided vocabulary. Returns (losses_N, probabilities' parts).

    Each process contributes its log-sum-exp and its target's logit; the log-sum-exp of the former
    less the sum of the latter is the loss. One collective of [T, 2, N], and no maximum over
    processes, which CPU has not.
    """

    def __init__(self, part: Slice):
        super().__init__()
        self.begin, self.own = part.begin, part.own
        self.enter = CopyTo(part.group)
        self.loss = _SplitLoss(part)

    def construct(self, x_ND: Tensor, w_VD: Tensor, labels_N: Tensor) -> Any:
        return self.loss(self.enter(x_ND), w_VD, labels_N, self.begin, self.own)


class _SplitLoss(nn.Cell):
    """The part between: its gradient with regard to x is this process's share of it."""

    def __init__(self, part: Slice):
        super().__init__()
        self.head = ops.MatMul(transpose_b=True)
        self.to_x = ops.MatMul()
        self.to_w = ops.MatMul(transpose_a=True)
        self.gather = ops.GatherD()
        self.max = ops.ReduceMax(keep_dims=True)
        self.sum = ops.ReduceSum(keep_dims=True)
        self.all_reduce = ops.AllReduce(group=part.group)
        self.one_hot = ops.OneHot()

    def construct(
        self, x_ND: Tensor, w_VD: Tensor, labels_N: Tensor, begin: Tensor, own: Tensor
    ) -> Any:
        logits = self.head(x_ND, w_VD)
        safe, inside = _own_rows(labels_N, begin, w_VD.shape[0])
        target = ops.reshape(self.gather(logits, 1, ops.reshape(safe, (-1, 1))), (-1,)) * inside
        both = ops.stack((ops.reshape(self._log_sum_exp(logits, 1), (-1,)), target))
        all_T2N = self.all_reduce(own * ops.reshape(both, (1, 2, -1)))
        whole = ops.reshape(self._log_sum_exp(all_T2N, 0), (2, -1))[0:1]
        whole = ops.reshape(whole, (-1,))
        targets = ops.reshape(self.sum(all_T2N, 0), (2, -1))[1:2]
        losses = (whole - ops.reshape(targets, (-1,))) * _counted(labels_N)
        return losses, logits, whole

    def bprop(
        self,
        x_ND: Tensor,
        w_VD: Tensor,
        labels_N: Tensor,
        begin: Tensor,
        own: Tensor,
        out: Any,
        dout: Any,
    ) -> Any:
        _, logits, whole = out
        safe, inside = _own_rows(labels_N, begin, w_VD.shape[0])
        one, zero = Tensor(1.0, mindspore.float32), Tensor(0.0, mindspore.float32)
        at_target = self.one_hot(safe, w_VD.shape[0], one, zero) * ops.reshape(inside, (-1, 1))
        dlogits = ops.exp(logits - ops.reshape(whole, (-1, 1))) - at_target
        weight = ops.reshape(dout[0] * _counted(labels_N), (-1, 1))
        dx = self.to_x(dlogits, w_VD) * weight
        dw = self.to_w(dlogits, x_ND * weight)
        zeros = ops.zeros_like
        return dx, dw, zeros(labels_N), zeros(begin), zeros(own)

    def _log_sum_exp(self, x: Tensor, axis: int) -> Tensor:
        top = self.max(x, axis)
        return top + ops.log(self.sum(ops.exp(x - top), axis))


def _own_rows(ids_N: Tensor, begin: Tensor, rows: int) -> Any:
    """(row of the own slice, 0 where another holds it; 1.0 where the own slice holds it)."""
    local = ids_N - begin
    inside = ops.logical_and(local >= 0, local < rows)
    return local * ops.cast(inside, mindspore.int32), ops.cast(inside, mindspore.float32)


def _counted(labels_N: Tensor) -> Tensor:
    return ops.cast(labels_N >= 0, mindspore.float32)
