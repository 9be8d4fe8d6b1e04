"""The decoder's inner functions as cells with hand-written gradients.

MindSpore's own gradients of these are correct but slow on CPU: they recompute what the forward
pass had, go back through ReduceMax, and give gradients to constants. Broadcasts are avoided on
large tensors: an elementwise kernel that broadcasts takes three to five times as long.

Shape suffixes: N = B*T rows of a batch of B sequences of T tokens, D features, H query heads,
K key/value heads, G = H/K, E features of one head, V vocabulary.
"""

from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from stages.engine.precision import Precision, in_precision

MASKED = -1.0e9
"""Added to a score that must not count. Finite, so that a row of padding gives no NaN."""


class Norm(nn.Cell):
    """RMSNorm of rows: x_ND / sqrt(mean(x^2) + eps) * w_D.

    Returns the result and what the gradient needs: the factor 1/sqrt(...) [N, 1], and that factor
    times w as [N, D].
    """

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps
        self.mean = ops.ReduceMean(keep_dims=True)
        self.rsqrt = ops.Rsqrt()
        self.product = ops.MatMul()
        self.product_at = ops.MatMul(transpose_a=True)

    def construct(self, x_ND: Tensor, w_D: Tensor) -> Any:
        scale = self.rsqrt(self.mean(x_ND * x_ND, -1) + self.eps)
        factor = self.product(scale, ops.reshape(w_D, (1, -1)))
        return x_ND * factor, scale, factor

    def bprop(self, x_ND: Tensor, w_D: Tensor, out: Any, dout: Any) -> Any:
        _, scale, factor = out
        xdy = x_ND * dout[0]
        # mean over features of x * w * dy, as a product with w.
        along = self.product(xdy, ops.reshape(w_D, (-1, 1))) * (1.0 / x_ND.shape[1])
        dx = dout[0] * factor - x_ND * (along * scale * scale * scale)
        return dx, ops.reshape(self.product_at(scale, xdy), w_D.shape)


class Normalize(nn.Cell):
    """RMSNorm without its weight: x / sqrt(mean(x^2) + eps) over the last axis.

    Returns the normalized x and the factor 1/sqrt(...), which the gradient needs.
    """

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps
        self.mean = ops.ReduceMean(keep_dims=True)
        self.rsqrt = ops.Rsqrt()

    def construct(self, x: Tensor) -> Any:
        scale = self.rsqrt(self.mean(x * x, -1) + self.eps)
        return x * scale, scale

    def bprop(self, x: Tensor, out: Any, dout: Any) -> Any:
        y, scale = out
        dy = dout[0]
        return ((dy - y * self.mean(dy * y, -1)) * scale,)


class ColumnScale(nn.Cell):
    """x_ND * w_D, with the weight's gradient as a matrix product (a reduction is slower)."""

    def __init__(self) -> None:
        super().__init__()
        self.sum_rows = ops.MatMul()

    def construct(self, x_ND: Tensor, w_D: Tensor) -> Tensor:
        return x_ND * w_D

    def bprop(self, x_ND: Tensor, w_D: Tensor, out: Tensor, dout: Tensor) -> Any:
        ones = ops.ones((1, x_ND.shape[0]), mindspore.float32)
        return dout * w_D, ops.reshape(self.sum_rows(ones, dout * x_ND), w_D.shape)


class SplitHeads(nn.Cell):
    """Cut the fused projection [N, (H+2K)*E] into q and k [N, (H+K)*E] and values [N, K*E]."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int):
        super().__init__()
        self.qk_width, self.v_width = (heads + kv_heads) * head_dim, kv_heads * head_dim
        self.slice = ops.Slice()
        self.concat = ops.Concat(axis=1)

    def construct(self, qkv: Tensor) -> Any:
        rows = qkv.shape[0]
        qk = self.slice(qkv, (0, 0), (rows, self.qk_width))
        v = self.slice(qkv, (0, self.qk_width), (rows, self.v_width))
        return qk, v

    def bprop(self, qkv: Tensor, out: Any, dout: Any) -> Any:
        return (self.concat((dout[0], dout[1])),)


class Rotate(nn.Cell):
    """Rotary embedding x*cos + rotate_half(x)*sin per head, in Hugging Face's order of features.

    x, cos and sin are [N, (H+K)*E].

    The half-rotation is a product with a constant signed permutation: cheaper than slices here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turn = ops.MatMul()
        self.turn_back = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, half_turn_EE: Tensor) -> Tensor:
        flat = ops.reshape(x, (-1, half_turn_EE.shape[0]))
        return x * cos + ops.reshape(self.turn(flat, half_turn_EE), x.shape) * sin

    def bprop(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        half_turn_EE: Tensor,
        out: Tensor,
        dout: Tensor,
    ) -> Any:
        turned = ops.reshape(dout * sin, (-1, half_turn_EE.shape[0]))
        dx = dout * cos + ops.reshape(self.turn_back(turned, half_turn_EE), x.shape)
        return dx, ops.zeros_like(cos), ops.zeros_like(sin), ops.zeros_like(half_turn_EE)


class Attention(nn.Cell):
    """softmax(q k^T + bias) v per head, causal, grouped queries sharing their key/value head.

    Takes rotated heads [N, (H+K)*E] (the 1/sqrt(E) is in the rotation), values [N, K*E] and biases:
    one [B, K, G, T, T] or what broadcasts to it; or, in two halves, one for the first T/2 queries,
    which see the first T/2 keys alone, [B, K, G, T/2, T/2], and one for the others,
    [B, K, G, T/2, T]. Returns the result [N, H*E] and what the gradient needs.
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, precision: Precision = "fp32"):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.group = heads // kv_heads
        self.product = in_precision(ops.BatchMatMul(), precision)
        self.product_bt = in_precision(ops.BatchMatMul(transpose_b=True), precision)
        self.product_at = in_precision(ops.BatchMatMul(transpose_a=True), precision)
        self.softmax = ops.Softmax()
        self.transpose = ops.Transpose()
        self.slice = ops.Slice()
        self.sum = ops.ReduceSum(keep_dims=True)
        self.concat_heads = ops.Concat(axis=1)
        self.concat_time = ops.Concat(axis=2)
        self.concat_keys = ops.Concat(axis=1)
        self.concat_features = ops.Concat(axis=2)

    def construct(self, qk: Tensor, v: Tensor, biases: Any) -> Any:
        time = biases[-1].shape[-1]
        batch = qk.shape[0] // time
        heads, kv_heads, dim = self.heads, self.kv_heads, self.head_dim
        qk = self.transpose(ops.reshape(qk, (batch, time, heads + kv_heads, dim)), (0, 2, 1, 3))
        k = self.slice(qk, (0, heads, 0, 0), (batch, kv_heads, time, dim))
        v = self.transpose(ops.reshape(v, (batch, time, kv_heads, dim)), (0, 2, 1, 3))
        k = ops.reshape(k, (batch * kv_heads, time, dim))
        v = ops.reshape(v, (batch * kv_heads, time, dim))
        if len(biases) == 1:
            q = self.slice(qk, (0, 0, 0, 0), (batch, heads, time, dim))
            kept: Any = (self._attend(q, k, v, biases[0]),)
            o = kept[0][0]
        else:
            half = time // 2
            q_early = self.slice(qk, (0, 0, 0, 0), (batch, heads, half, dim))
            q_late = self.slice(qk, (0, 0, half, 0), (batch, heads, half, dim))
            early = self._attend(q_early, self._first(k, half), self._first(v, half), biases[0])
            late = self._attend(q_late, k, v, biases[1])
            kept = (early, late)
            o = self.concat_time((early[0], late[0]))
        joined = self.transpose(o, (0, 2, 1, 3))
        return ops.reshape(joined, (batch * time, heads * dim)), kept

    def _attend(self, q_BHSE: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
        """Result [B, H, S, E] of S queries over keys and values [B*K, T, E]; and q, k, v, p."""
        batch, _, queries, dim = q_BHSE.shape
        keys, kv_heads = k.shape[1], self.kv_heads
        q = ops.reshape(q_BHSE, (batch * kv_heads, self.group * queries, dim))
        scores = ops.reshape(self.product_bt(q, k), (batch, kv_heads, self.group, queries, keys))
        scores = ops.reshape(scores + bias, (batch * kv_heads, self.group * queries, keys))
        p = self.softmax(scores)
        return ops.reshape(self.product(p, v), q_BHSE.shape), q, k, v, p

    def bprop(self, qk: Tensor, v: Tensor, biases: Any, out: Any, dout: Any) -> Any:
        time = biases[-1].shape[-1]
        batch = qk.shape[0] // time
        heads, kv_heads, dim = self.heads, self.kv_heads, self.head_dim
        kept = out[1]
        do = self.transpose(ops.reshape(dout[0], (batch, time, heads, dim)), (0, 2, 1, 3))
        if len(biases) == 1:
            dq, dk, dv = self._back(do, kept[0])
        else:
            half = time // 2
            do_early = self.slice(do, (0, 0, 0, 0), (batch, heads, half, dim))
            do_late = self.slice(do, (0, 0, half, 0), (batch, heads, half, dim))
            dq_early, dk_early, dv_early = self._back(do_early, kept[0])
            dq_late, dk, dv = self._back(do_late, kept[1])
            dq = self.concat_time((dq_early, dq_late))
            dk, dv = self._add_to_first(dk_early, dk), self._add_to_first(dv_early, dv)
        dk = ops.reshape(dk, (batch, kv_heads, time, dim))
        dqk = self.transpose(self.concat_heads((dq, dk)), (0, 2, 1, 3))
        dv = self.transpose(ops.reshape(dv, (batch, kv_heads, time, dim)), (0, 2, 1, 3))
        none: Any = ()
        for bias in biases:
            none = (*none, ops.zeros_like(bias))
        return ops.reshape(dqk, qk.shape), ops.reshape(dv, v.shape), none

    def _back(self, do_BHSE: Tensor, kept: Any) -> Any:
        """Gradients of q [B, H, S, E] and of k and v [B*K, T, E], of what `_attend` gave."""
        o_BHSE, q, k, v, p = kept
        do, o = ops.reshape(do_BHSE, q.shape), ops.reshape(o_BHSE, q.shape)
        dv = self.product_at(p, do)
        # ds = (dp - sum(dp * p)) * p. The sum over keys equals sum(do * o) over features, and one
        # more feature in the product subtracts it without a broadcast over [T, T].
        minus_one = ops.fill(mindspore.float32, (*v.shape[:2], 1), -1.0)
        do_more = self.concat_features((do, self.sum(do * o, -1)))
        ds = self.product_bt(do_more, self.concat_features((v, minus_one))) * p
        return ops.reshape(self.product(ds, k), do_BHSE.shape), self.product_at(ds, q), dv

    def _first(self, x: Tensor, time: int) -> Tensor:
        """The first keys of [B*K, T, E]."""
        return self.slice(x, (0, 0, 0), (x.shape[0], time, x.shape[2]))

    def _add_to_first(self, first: Tensor, x: Tensor) -> Tensor:
        """x [B*K, T, E] with `first` added to its first keys."""
        count, time = first.shape[:2]
        rest = self.slice(x, (0, time, 0), (count, x.shape[1] - time, x.shape[2]))
        return self.concat_keys((self._first(x, time) + first, rest))


class SwiGLU(nn.Cell):
    """silu(gate) * up."""

    def __init__(self) -> None:
        super().__init__()
        self.sigmoid = ops.Sigmoid()

    def construct(self, gate: Tensor, up: Tensor) -> Any:
        sigmoid = self.sigmoid(gate)
        silu = gate * sigmoid
        return silu * up, sigmoid, silu

    def bprop(self, gate: Tensor, up: Tensor, out: Any, dout: Any) -> Any:
        _, sigmoid, silu = out
        dy = dout[0]
        return dy * up * (sigmoid + silu * (1.0 - sigmoid)), dy * silu


class RowLoss(nn.Cell):
    """Cross-entropy of each row, -log softmax(x w^T)[label], zero where the label is negative.

    Takes x_ND, w_VD and labels_N int32; returns (losses_N, logits_NV). The gradient of a head that
    is not tied is made as [D, V] and turned: its product then transposes the narrow factor, which
    takes little more than half the time. (A tied one keeps the order that models so far came from.)
    """

    def __init__(self, is_tied: bool):
        super().__init__()
        self.is_tied = is_tied
        self.turn = ops.Transpose()
        self.head = ops.MatMul(transpose_b=True)
        self.to_x = ops.MatMul()
        self.to_w = ops.MatMul(transpose_a=True)
        self.log_softmax = ops.LogSoftmax()
        self.gather = ops.GatherD()
        # Gives (softmax - onehot) / N in one kernel.
        self.softmax_minus_onehot = ops.SparseSoftmaxCrossEntropyWithLogits(is_grad=True)

    def construct(self, x_ND: Tensor, w_VD: Tensor, labels_N: Tensor) -> Any:
        logits = self.head(x_ND, w_VD)
        safe, counted = self._labels(labels_N)
        picked = self.gather(self.log_softmax(logits), 1, ops.reshape(safe, (-1, 1)))
        return ops.reshape(picked, (-1,)) * -counted, logits

    def bprop(self, x_ND: Tensor, w_VD: Tensor, labels_N: Tensor, out: Any, dout: Any) -> Any:
        safe, counted = self._labels(labels_N)
        # The rows' weights go into the narrow factors instead of [N, V].
        weight = ops.reshape(dout[0] * counted * x_ND.shape[0], (-1, 1))
        dlogits = self.softmax_minus_onehot(out[1], safe)
        dx = self.to_x(dlogits, w_VD) * weight
        if self.is_tied:
            dw = self.to_w(dlogits, x_ND * weight)
        else:
            dw = self.turn(self.to_w(x_ND * weight, dlogits), (1, 0))
        return dx, dw, ops.zeros_like(labels_N)

    def _labels(self, labels_N: Tensor) -> Any:
        return ops.maximum(labels_N, 0), ops.cast(labels_N >= 0, mindspore.float32)
