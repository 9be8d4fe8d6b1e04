"""A decoder exported by `mindspore.onnx.export(dynamic_axes=...)`: dynamic in name, baked inside.

This is what the export's proof exists to refuse. The graph is right at its own shape only.
"""

from pathlib import Path

import mindspore
import numpy as np
import onnx
from mindspore import Parameter, Tensor, nn, ops

from artifacts.architecture import Architecture
from artifacts.onnx_bundle import (
    BATCH,
    IDS,
    LOGITS,
    MASK,
    PAST,
    POSITIONS,
    SEQUENCE,
    TOTAL,
    past_names,
    present_names,
)


class OneLayer(nn.Cell):
    """A one-layer Llama with as many key/value heads as query heads, written for the exporter."""

    def __init__(self, a: Architecture, weights: dict[str, np.ndarray]):
        super().__init__()
        at = "model.layers.0."
        self.a = a
        self.embed = _parameter(weights["model.embed_tokens.weight"])
        for short in ("q", "k", "v", "o"):
            setattr(self, short, _parameter(weights[f"{at}self_attn.{short}_proj.weight"].T))
        for short in ("gate", "up", "down"):
            setattr(self, short, _parameter(weights[f"{at}mlp.{short}_proj.weight"].T))
        self.norm1 = _parameter(weights[at + "input_layernorm.weight"])
        self.norm2 = _parameter(weights[at + "post_attention_layernorm.weight"])
        self.norm3 = _parameter(weights["model.norm.weight"])
        self.head = _parameter(weights["model.embed_tokens.weight"].T)
        frequency = a.rope_theta ** (-np.arange(0, a.head_dim, 2) / a.head_dim)
        self.frequency = Tensor(frequency.astype(np.float32))

    def construct(
        self, ids: Tensor, mask: Tensor, positions: Tensor, past_k: Tensor, past_v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        a = self.a
        batch, new = ids.shape
        total = mask.shape[1]
        columns = Tensor(np.arange(total, dtype=np.float32))
        queries = Tensor(np.arange(total - new, total, dtype=np.float32).reshape(new, 1))
        causal = ops.cast(ops.less_equal(columns, queries), mindspore.float32)
        keep = ops.reshape(ops.cast(mask, mindspore.float32), (batch, 1, 1, total))
        bias = (causal * keep - 1.0) * 1e30
        x = ops.reshape(
            ops.gather(self.embed, ops.reshape(ids, (-1,)), 0), (batch, new, a.hidden_size)
        )
        h = self._norm(x, self.norm1)
        position = ops.reshape(ops.cast(positions, mindspore.float32), (batch, 1, new, 1))
        angle = position * self.frequency
        cos, sin = ops.cos(angle), ops.sin(angle)
        q = self._rotate(self._heads(h, self.q, batch, new), cos, sin)
        k = ops.concat((past_k, self._rotate(self._heads(h, self.k, batch, new), cos, sin)), 2)
        v = ops.concat((past_v, self._heads(h, self.v, batch, new)), 2)
        score = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * a.head_dim**-0.5 + bias
        mixed = ops.transpose(ops.matmul(ops.softmax(score, -1), v), (0, 2, 1, 3))
        x = x + ops.matmul(ops.reshape(mixed, (batch, new, a.heads * a.head_dim)), self.o)
        h = self._norm(x, self.norm2)
        gate = ops.matmul(h, self.gate)
        x = x + ops.matmul(gate * ops.sigmoid(gate) * ops.matmul(h, self.up), self.down)
        return ops.matmul(self._norm(x, self.norm3), self.head), k, v

    def _heads(self, h: Tensor, weight: Parameter, batch: int, new: int) -> Tensor:
        y = ops.reshape(ops.matmul(h, weight), (batch, new, self.a.heads, self.a.head_dim))
        return ops.transpose(y, (0, 2, 1, 3))

    def _norm(self, x: Tensor, weight: Parameter) -> Tensor:
        mean = ops.mean(x * x, -1, True)
        return x / ops.sqrt(mean + self.a.rms_norm_eps) * weight

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = ops.split(x, self.a.head_dim // 2, -1)
        return ops.concat((first * cos - second * sin, second * cos + first * sin), -1)


def export_baked(
    path: Path, a: Architecture, weights: dict[str, np.ndarray], batch: int, past: int, new: int
) -> None:
    """Export at one shape with every axis declared dynamic, under the bundle's names."""
    total = past + new
    shapes = {
        IDS: (batch, new),
        MASK: (batch, total),
        POSITIONS: (batch, new),
    }
    feed = [Tensor(np.ones(shape, np.int64)) for shape in shapes.values()]
    cache = Tensor(np.ones((batch, a.kv_heads, past, a.head_dim), np.float32))
    names = [*shapes, *past_names(0)]
    dynamic = {
        IDS: {0: BATCH, 1: SEQUENCE},
        MASK: {0: BATCH, 1: TOTAL},
        POSITIONS: {0: BATCH, 1: SEQUENCE},
        **{name: {0: BATCH, 2: PAST} for name in past_names(0)},
    }
    mindspore.onnx.export(
        OneLayer(a, weights),
        *feed,
        cache,
        cache,
        file_name=str(path),
        input_names=names,
        dynamic_axes=dynamic,
    )
    model = onnx.load(str(path))
    for output, name in zip(model.graph.output, [LOGITS, *present_names(0)], strict=True):
        _rename(model.graph, output.name, name)  # its own output_names makes an invalid graph
        output.name = name
    onnx.save(model, str(path))


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def _parameter(value: np.ndarray) -> Parameter:
    return Parameter(Tensor(np.ascontiguousarray(value)))
