"""The decoder after a prefix that many rows share: it is read once, its keys and values are kept.

Few-shot questions of one subject differ in their last few dozen tokens out of many hundred. The
graphs are compiled once, with lengths left open: every subject has a prefix of another length, and
compiling for each would take longer than scoring it.

Shape suffixes as in `cells.py`; P tokens of the prefix, S tokens of each row after it.
"""

from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from stages.engine.cells import MASKED
from stages.engine.model import Decoder, Layer


class ReadPrefix(nn.Cell):
    """Token ids [1, P] to each layer's rotated keys and values in turn, [1, K, P, E] each."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder
        self.gather = ops.Gather()
        dim = decoder.layers[0].attention.head_dim
        floats = open_shapes((None, dim), (None, dim), (1, 1, 1, None, None))
        self.set_inputs(open_ids(1, None), *floats)

    def construct(self, ids_1P: Tensor, cos: Tensor, sin: Tensor, causal: Tensor) -> Any:
        decoder = self.decoder
        x = self.gather(decoder.embedding, ops.reshape(ids_1P, (-1,)), 0)
        cos, sin = ops.tile(cos, (1, decoder.rotated)), ops.tile(sin, (1, decoder.rotated))
        found = []
        for layer in decoder.layers:
            qk, v = layer.project(x, cos, sin, decoder.half_turn_EE)
            heads = layer.attention
            _, k, values = _by_head(heads, qk, v, 1)
            found += [k, values]
            x = layer.finish(x, heads(qk, v, (causal,))[0])
        return tuple(found)


class AfterPrefix(nn.Cell):
    """The normed residual stream [B*S, D] of rows that follow a prefix."""

    WANTED: tuple[None, ...] = (None, None)
    """Shape of the second input: which tokens are asked about."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder
        self.gather = ops.Gather()
        self.concat = ops.Concat(axis=2)
        heads = decoder.layers[0].attention
        rows = (None, heads.head_dim)
        past = [(1, heads.kv_heads, None, heads.head_dim)] * (2 * len(decoder.layers))
        floats = open_shapes(rows, rows, (1, 1, 1, None, None), *past)
        self.set_inputs(open_ids(None, None), open_ids(*self.WANTED), *floats)

    def hidden(self, ids_BS: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, past: Any) -> Tensor:
        """`bias` is [1, 1, 1, S, P+S]; `past` is what `ReadPrefix` gave.

        Its tensors are arguments of their own where a graph is called: those inside a tuple would
        be taken for constants, and every call compiled anew.
        """
        decoder = self.decoder
        x = self.gather(decoder.embedding, ops.reshape(ids_BS, (-1,)), 0)
        cos, sin = ops.tile(cos, (1, decoder.rotated)), ops.tile(sin, (1, decoder.rotated))
        # Once for all layers: a kernel that broadcasts takes several times as long.
        bias = ops.tile(bias, (ids_BS.shape[0], decoder.kv_heads, decoder.group, 1, 1))
        for i, layer in enumerate(decoder.layers):
            x = self._layer(layer, x, cos, sin, bias, past[2 * i : 2 * i + 2])
        return decoder.norm(x)

    def _layer(
        self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, past: Any
    ) -> Tensor:
        heads = layer.attention
        new, total = bias.shape[-2:]
        batch = x.shape[0] // new
        qk, v = layer.project(x, cos, sin, self.decoder.half_turn_EE)
        q, k, v = _by_head(heads, qk, v, batch)
        k = self.concat((ops.tile(past[0], (batch, 1, 1, 1)), k))
        v = self.concat((ops.tile(past[1], (batch, 1, 1, 1)), v))
        dim, kv, group = heads.head_dim, heads.kv_heads, heads.group
        q = ops.reshape(q, (batch * kv, group * new, dim))
        scores = heads.product_bt(q, ops.reshape(k, (batch * kv, total, dim)))
        scores = ops.reshape(scores, (batch, kv, group, new, total)) + bias
        p = heads.softmax(ops.reshape(scores, (batch * kv, group * new, total)))
        y = heads.product(p, ops.reshape(v, (batch * kv, total, dim)))
        y = heads.transpose(ops.reshape(y, (batch, heads.heads, new, dim)), (0, 2, 1, 3))
        return layer.finish(x, ops.reshape(y, (batch * new, heads.heads * dim)))


class NextAfterPrefix(AfterPrefix):
    """Logits [B, V] of the token after row `at_B` of the [B*S] rows: one product with the head a
    sequence, not one a token."""

    WANTED = (None,)

    def construct(
        self, ids_BS: Tensor, at_B: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, *past: Tensor
    ) -> Tensor:
        x = self.hidden(ids_BS, cos, sin, bias, past)
        return self.decoder.logits(self.gather(x, at_B, 0), self.decoder.head_weight())


class ScoreAfterPrefix(AfterPrefix):
    """Of each next token: its log-probability, and whether it is the most likely one."""

    def __init__(self, decoder: Decoder):
        super().__init__(decoder)
        self.log_softmax = ops.LogSoftmax()
        self.pick = ops.GatherD()
        self.argmax = ops.Argmax()

    def construct(
        self, ids_BS: Tensor, next_BS: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, *past: Tensor
    ) -> Any:
        x = self.hidden(ids_BS, cos, sin, bias, past)
        logits = self.decoder.logits(x, self.decoder.head_weight())
        picked = self.pick(self.log_softmax(logits), 1, ops.reshape(next_BS, (-1, 1)))
        greedy = self.argmax(logits) == ops.reshape(next_BS, (-1,))
        return ops.reshape(picked, ids_BS.shape), ops.reshape(greedy, ids_BS.shape)


def bias_after(prefix: int, new: int, window: int | None = None) -> np.ndarray:
    """[1, 1, 1, S, P+S] float32: the last S rows of `causal_bias` over prefix and row together."""
    query, key = prefix + np.arange(new)[:, None], np.arange(prefix + new)[None, :]
    hidden = key > query if window is None else (key > query) | (key <= query - window)
    return np.where(hidden, np.float32(MASKED), np.float32(0))[None, None, None]


def open_shapes(*shapes: tuple[int | None, ...]) -> list[Tensor]:
    """Stand-ins for a graph's float32 inputs; None is a length that may differ at every call."""
    return [Tensor(shape=list(shape), dtype=mindspore.float32) for shape in shapes]


def open_ids(*shape: int | None) -> Tensor:
    """The same for int32."""
    return Tensor(shape=list(shape), dtype=mindspore.int32)


def _by_head(heads: nn.Cell, qk: Tensor, v: Tensor, batch: int) -> Any:
    """Rows [B*S, ...] as q [B, H, S, E], k and v [B, K, S, E]."""
    time = qk.shape[0] // batch
    count, kv, dim = heads.heads, heads.kv_heads, heads.head_dim
    qk = heads.transpose(ops.reshape(qk, (batch, time, count + kv, dim)), (0, 2, 1, 3))
    q = heads.slice(qk, (0, 0, 0, 0), (batch, count, time, dim))
    k = heads.slice(qk, (0, count, 0, 0), (batch, kv, time, dim))
    v = heads.transpose(ops.reshape(v, (batch, time, kv, dim)), (0, 2, 1, 3))
    return q, k, v
