"""The Llama-family decoder in MindSpore: one model for Llama, Mistral, Qwen2 and Qwen3 shapes.

Activations are 2-D, [N = B*T, features]: three-dimensional products run at half the rate on CPU.
Parameters lie as the kernels like them; `weights.py` alone knows how that maps to Hugging Face.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from artifacts.architecture import Architecture
from artifacts.rope import scaled
from stages.engine.causal import halves
from stages.engine.cells import (
    MASKED,
    Attention,
    ColumnScale,
    Norm,
    Normalize,
    Rotate,
    RowLoss,
    SplitHeads,
    SwiGLU,
)
from stages.engine.collectives import CopyTo, ReduceFrom, Slice, SplitGather, SplitRowLoss
from stages.engine.precision import Precision, in_precision

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The seven linears of a layer, by their Hugging Face names."""

BLOCK = dict.fromkeys(PROJECTIONS[:4], "self_attn") | dict.fromkeys(PROJECTIONS[4:], "mlp")
"""The part of a layer that each stands in."""

LARGEST_REPEATED_BIAS = 1 << 24
"""Numbers up to which the attention bias is repeated for every head; 64 MiB."""


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters on some of the linears: y += scaling * (x A^T) B^T."""

    pairs: Mapping[str, tuple[int, float]]
    """Hugging Face module name (`model.layers.0.self_attn.q_proj`) -> (rank, scaling)."""

    @classmethod
    def everywhere(
        cls, shape: Architecture, rank: int, scaling: float, targets: tuple[str, ...] = PROJECTIONS
    ) -> "Lora":
        """The same pair on these linears of every layer."""
        modules = (f"model.layers.{i}.{BLOCK[t]}.{t}" for i in range(shape.layers) for t in targets)
        return cls(dict.fromkeys(modules, (rank, scaling)))

    def in_layer(self, index: int) -> dict[str, tuple[int, float]]:
        """Name of a linear -> (rank, scaling) in one layer."""
        begin = f"model.layers.{index}."
        return {
            module.rsplit(".", 1)[-1]: pair
            for module, pair in self.pairs.items()
            if module.startswith(begin)
        }


@dataclass(frozen=True)
class Part:
    """What of a model a decoder is, when several processes hold it together."""

    first: bool = True
    """Tokens enter here."""
    last: bool = True
    """The norm and the head are here."""
    vocabulary: Slice | None = None
    """Set if every matrix is divided among tensor processes: this one's slice."""

    @property
    def group(self) -> str | None:
        """The tensor processes, by the name of their group."""
        return None if self.vocabulary is None else self.vocabulary.group


WHOLE = Part()


def _empty(*shape: int) -> Parameter:
    return Parameter(Tensor(np.zeros(shape, np.float32)))


class Linear(nn.Cell):
    """x_NI -> x W^T (+ bias) of width `out`.

    The weight lies [in, out] when in <= out, else [out, in], so that the gradient's product
    transposes the narrow side. With a group, its processes hold slices of the input's features, and
    their products are summed before the bias.
    """

    def __init__(
        self,
        width_in: int,
        width_out: int,
        bias: bool = False,
        group: str | None = None,
        precision: Precision = "fp32",
    ):
        super().__init__()
        self.transposed = width_in <= width_out
        shape = (width_in, width_out) if self.transposed else (width_out, width_in)
        self.weight = _empty(*shape)
        self.product = in_precision(ops.MatMul(transpose_b=not self.transposed), precision)
        self.is_part = group is not None
        if group is not None:
            self.reduce = ReduceFrom(group)
        self.has_bias = bias
        if bias:
            self.bias = _empty(width_out)
            self.add_bias = ops.BiasAdd()

    def construct(self, x: Tensor) -> Tensor:
        y = self.product(x, self.weight)
        if self.is_part:
            y = self.reduce(y)
        if self.has_bias:
            y = self.add_bias(y, self.bias)
        return y


class LoraPair(nn.Cell):
    """scaling * (x A^T) B^T, in PEFT's layout: A [rank, in], B [out, rank]."""

    def __init__(self, width_in: int, width_out: int, rank: int, scaling: float):
        super().__init__()
        self.lora_A = _empty(rank, width_in)
        self.lora_B = _empty(width_out, rank)
        self.scaling = scaling
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor) -> Tensor:
        return self.product(self.product(x, self.lora_A) * self.scaling, self.lora_B)


class NoPair(nn.Cell):
    """The zero that stands beside adapted q, k or v when the projection itself is not adapted."""

    def __init__(self, width_out: int):
        super().__init__()
        self.width_out = width_out

    def construct(self, x: Tensor) -> Tensor:
        return ops.zeros((x.shape[0], self.width_out), mindspore.float32)


class RMSNorm(nn.Cell):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis of x_ND."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = _empty(width)
        self.norm = Norm(eps)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight)[0]


class HeadNorm(nn.Cell):
    """Qwen3's norm per head before the rotation, on queries and keys at once: [N, (H+K)*E].

    With a group, its processes hold different heads; the weights' gradients are summed over them.
    """

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, eps: float, group: str | None = None
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_weight = _empty(head_dim)
        self.k_weight = _empty(head_dim)
        self.normalize = Normalize(eps)
        self.scale = ColumnScale()
        self.concat = ops.Concat(axis=0)
        self.is_part = group is not None
        if group is not None:
            self.enter = CopyTo(group)

    def construct(self, qk: Tensor) -> Tensor:
        rows, width = qk.shape
        q_rows = ops.tile(self.q_weight, (self.heads,))
        k_rows = ops.tile(self.k_weight, (self.kv_heads,))
        weights = self.concat((q_rows, k_rows))
        if self.is_part:
            # Together: the cell called with one parameter, then with another, took the first twice.
            weights = self.enter(weights)
        heads = ops.reshape(qk, (rows, self.heads + self.kv_heads, self.head_dim))
        flat = ops.reshape(self.normalize(heads)[0], (rows, width))
        return self.scale(flat, weights)


class Layer(nn.Cell):
    """One decoder layer: attention and SwiGLU, each behind a norm and added to the stream."""

    def __init__(
        self,
        shape: Architecture,
        lora: Mapping[str, tuple[int, float]],
        group: str | None = None,
        precision: Precision = "fp32",
    ):
        """`lora` maps names of this layer's linears to (rank, scaling) of their pairs.

        With a group, `shape` is what one of its processes holds; the stream is the same in all.
        """
        super().__init__()
        self.is_part = group is not None
        if group is not None:
            self.enter = CopyTo(group)
        hidden, inner, dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
        q_width, kv_width = shape.heads * dim, shape.kv_heads * dim
        self.attention_norm = RMSNorm(hidden, shape.rms_norm_eps)
        self.qkv = Linear(hidden, q_width + 2 * kv_width, shape.qkv_bias, precision=precision)
        self.split_heads = SplitHeads(shape.heads, shape.kv_heads, dim)
        self.has_head_norm = shape.qk_norm
        if shape.qk_norm:
            self.head_norm = HeadNorm(shape.heads, shape.kv_heads, dim, shape.rms_norm_eps, group)
        self.rotate = Rotate()
        self.attention = Attention(shape.heads, shape.kv_heads, dim, precision)
        self.o = Linear(q_width, hidden, shape.attention_bias, group, precision)
        self.mlp_norm = RMSNorm(hidden, shape.rms_norm_eps)
        self.gate = Linear(hidden, inner, shape.mlp_bias, precision=precision)
        self.up = Linear(hidden, inner, shape.mlp_bias, precision=precision)
        self.swiglu = SwiGLU()
        self.down = Linear(inner, hidden, shape.mlp_bias, group, precision)

        targets = tuple(name for name in PROJECTIONS if name in lora)
        widths = {
            "q_proj": (hidden, q_width),
            "k_proj": (hidden, kv_width),
            "v_proj": (hidden, kv_width),
            "o_proj": (q_width, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }
        for name in targets:
            setattr(self, name, LoraPair(*widths[name], *lora[name]))
        self.adapts_qkv = any(name in targets for name in ("q_proj", "k_proj", "v_proj"))
        if self.adapts_qkv:
            for name in ("q_proj", "k_proj", "v_proj"):
                if name not in targets:
                    setattr(self, name, NoPair(widths[name][1]))
            self.concat = ops.Concat(axis=1)
        self.adapts_o, self.adapts_gate = "o_proj" in targets, "gate_proj" in targets
        self.adapts_up, self.adapts_down = "up_proj" in targets, "down_proj" in targets

    def construct(
        self, x: Tensor, cos: Tensor, sin: Tensor, half_turn_EE: Tensor, biases: Any
    ) -> Tensor:
        qk, v = self.project(x, cos, sin, half_turn_EE)
        return self.finish(x, self.attention(qk, v, biases)[0])

    def project(self, x: Tensor, cos: Tensor, sin: Tensor, half_turn_EE: Tensor) -> Any:
        """Rotated queries and keys [N, (H+K)*E] and values [N, K*E]: what attention takes."""
        y = self.attention_norm(x)
        if self.is_part:
            y = self.enter(y)
        qkv = self.qkv(y)
        if self.adapts_qkv:
            qkv = qkv + self.concat((self.q_proj(y), self.k_proj(y), self.v_proj(y)))
        qk, v = self.split_heads(qkv)
        if self.has_head_norm:
            qk = self.head_norm(qk)
        return self.rotate(qk, cos, sin, half_turn_EE), v

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream after the layer, from the stream `x` and what attention gave, [N, H*E]."""
        z = self.o(y)
        if self.adapts_o:
            z = z + self.o_proj(y)
        x = x + z

        y = self.mlp_norm(x)
        if self.is_part:
            y = self.enter(y)
        gate, up = self.gate(y), self.up(y)
        if self.adapts_gate:
            gate = gate + self.gate_proj(y)
        if self.adapts_up:
            up = up + self.up_proj(y)
        y = self.swiglu(gate, up)[0]
        z = self.down(y)
        if self.adapts_down:
            z = z + self.down_proj(y)
        return x + z


class Decoder(nn.Cell):
    """Token ids to logits, or to the loss of each row.

    As a part, `shape` is what this process builds of the model; `embed`, `through` and `end` are
    what there is to call.
    """

    def __init__(
        self,
        shape: Architecture,
        lora: Lora | None = None,
        part: Part = WHOLE,
        precision: Precision = "fp32",
    ):
        super().__init__()
        self.precision: Precision = precision
        self.tied_head = shape.tied_head
        if part.first or (part.last and shape.tied_head):
            self.embedding = _empty(shape.vocab_size, shape.hidden_size)
        self._shape, self._group = shape, part.group
        self.layers = nn.CellList(
            [
                Layer(shape, lora.in_layer(i) if lora else {}, part.group, precision)
                for i in range(shape.layers)
            ]
        )
        if part.last:
            self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
            if not shape.tied_head:
                self.head = _empty(shape.vocab_size, shape.hidden_size)
        self.kv_heads, self.group = shape.kv_heads, shape.heads // shape.kv_heads
        self.rotated = shape.heads + shape.kv_heads
        self.half_turn_EE = Tensor(half_turn(shape.head_dim))
        self.logits = ops.MatMul(transpose_b=True)
        self.slice = ops.Slice()
        if part.vocabulary is None:
            self.gather, self.row_loss = ops.Gather(), RowLoss(shape.tied_head)
        else:
            self.gather, self.row_loss = (
                SplitGather(part.vocabulary),
                SplitRowLoss(part.vocabulary),
            )

    def embed(self, ids_BT: Tensor) -> Tensor:
        """The stream [N, D] before the first layer."""
        return self.gather(self.embedding, ops.reshape(ids_BT, (-1,)), 0)

    def through(self, x: Tensor, cos_NE: Tensor, sin_NE: Tensor, bias: Tensor) -> Tensor:
        """The stream [N, D] after the layers; see `rotation` and `causal_bias` for the inputs."""
        cos, sin, biases = self.repeated(cos_NE, sin_NE, bias)
        for layer in self.layers:
            x = layer(x, cos, sin, self.half_turn_EE, biases)
        return x

    def another_layer(self) -> Layer:
        """A layer of this decoder's shape, beside its own and without adapters."""
        return Layer(self._shape, {}, self._group, self.precision)

    def repeated(self, cos_NE: Tensor, sin_NE: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Any]:
        """The constants as layers take them: the biases of all queries or of two halves of them.

        Repeated once, since broadcasting in each layer would cost more.
        """
        cos, sin = ops.tile(cos_NE, (1, self.rotated)), ops.tile(sin_NE, (1, self.rotated))
        time = bias.shape[-1]
        sequences = cos_NE.shape[0] // time
        repeats = (sequences // bias.shape[0], self.kv_heads, self.group, 1, 1)
        too_large = repeats[0] * repeats[1] * repeats[2] * bias.size > LARGEST_REPEATED_BIAS
        if not halves(time):
            return cos, sin, (bias if too_large else ops.tile(bias, repeats),)
        rows, half = bias.shape[0], time // 2
        early = self.slice(bias, (0, 0, 0, 0, 0), (rows, 1, 1, half, half))
        late = self.slice(bias, (0, 0, 0, half, 0), (rows, 1, 1, half, time))
        if too_large:
            return cos, sin, (early, late)
        return cos, sin, (ops.tile(early, repeats), ops.tile(late, repeats))

    def end(self, x: Tensor, labels_BT: Tensor) -> Tensor:
        """Cross-entropy of each row [N] in nats; zero where the label is negative."""
        x = self.norm(x)
        return self.row_loss(x, self.head_weight(), ops.reshape(labels_BT, (-1,)))[0]

    def hidden(self, ids_BT: Tensor, cos_NE: Tensor, sin_NE: Tensor, bias: Tensor) -> Tensor:
        """The normed residual stream [N, D]."""
        return self.norm(self.through(self.embed(ids_BT), cos_NE, sin_NE, bias))

    def head_weight(self) -> Tensor:
        """The output head [V, D]."""
        return self.embedding if self.tied_head else self.head

    def construct(self, ids_BT: Tensor, cos_NE: Tensor, sin_NE: Tensor, bias: Tensor) -> Tensor:
        return self.logits(self.hidden(ids_BT, cos_NE, sin_NE, bias), self.head_weight())

    def losses(
        self, ids_BT: Tensor, labels_BT: Tensor, cos_NE: Tensor, sin_NE: Tensor, bias: Tensor
    ) -> Tensor:
        """Cross-entropy of each row [N] in nats; zero where the label is negative."""
        return self.end(self.through(self.embed(ids_BT), cos_NE, sin_NE, bias), labels_BT)


def half_turn(head_dim: int) -> np.ndarray:
    """P [E, E] with x @ P = concat(-x[E/2:], x[:E/2]), Hugging Face's rotate_half."""
    half = head_dim // 2
    turn = np.zeros((head_dim, head_dim), np.float32)
    turn[np.arange(half) + half, np.arange(half)] = -1.0
    turn[np.arange(half), np.arange(half) + half] = 1.0
    return turn


def rotation(shape: Architecture, positions_BT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [N, E] float32 for each row's position.

    Both carry E^-1/4, so that the product of a rotated query and key carries 1/sqrt(E). Angles are
    taken in float32 like transformers does, so that long positions round alike.
    """
    exponent = np.arange(0, shape.head_dim, 2, dtype=np.float32) / np.float32(shape.head_dim)
    frequency = (1.0 / np.float32(shape.rope_theta) ** exponent).astype(np.float32)
    frequency, sharpness = scaled(frequency, shape.rope_theta, shape.rope_scaling)
    angle = positions_BT.reshape(-1, 1).astype(np.float32) * frequency
    angle = np.concatenate([angle, angle], axis=1)
    scale = np.float32(sharpness * shape.head_dim**-0.25)
    return np.cos(angle) * scale, np.sin(angle) * scale


def causal_bias(length: int, window: int | None = None) -> np.ndarray:
    """[1, 1, 1, T, T] float32: 0 where a key is not after its query, else a large negative.

    With a `window`, a query sees so many keys at most, the last of them its own.
    """
    bias = np.triu(np.full((length, length), MASKED, np.float32), 1)
    if window is not None and window < length:
        bias += np.tril(np.full((length, length), MASKED, np.float32), -window)
    return bias[None, None, None]


def document_bias(documents_BT: np.ndarray, window: int | None = None) -> np.ndarray:
    """[B, 1, 1, T, T] float32: causal, and blind to tokens of another document in the same row."""
    other = documents_BT[:, :, None] != documents_BT[:, None, :]
    bias = np.where(other, np.float32(MASKED), causal_bias(documents_BT.shape[1], window)[0, 0])
    return bias[:, None, None].astype(np.float32)


def parameters(model: nn.Cell) -> dict[str, Any]:
    """The model's parameters by engine name, in the order of the graph."""
    return dict(model.parameters_and_names())
