"""Attention, norms and rotation in three sets of operators; all of them compute the same.

`plain` is what every engine runs. `opset23` says the same with the operators that ONNX has for it
since opset 23. `microsoft` uses onnxruntime's own GroupQueryAttention, which can keep its cache in
one buffer; its limits are onnxruntime's (docs/onnx.md, "Operators").

Shapes as in `decoder`: B batch, S new tokens, P cached ones, T = P + S, H query heads, KV key/value
heads, D features of a head. No constant depends on B, S, P or T: reshapes say 0 (keep this axis)
and -1 (what is left), and the rotary angles are computed from `position_ids`, so there is no table
that could end.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.onnx_bundle import IDS, MASK, POSITIONS, past_names, present_names
from artifacts.onnx_kinds import Operators
from artifacts.rope import scaled
from stages.export.graph import BOOL, FLOAT, INT32, MICROSOFT, GraphWriter

MASKED = float(np.finfo(np.float32).min)
"""Added to a masked score. Not -inf: a row that sees nothing would be NaN and spoil the rest."""


class Project(Protocol):
    """The projections of one layer."""

    def __call__(self, which: str) -> str:
        """One of q, k and v as [B, S, heads*D], bias included."""
        ...

    def joined(self, order: Sequence[int] | None = None) -> str | None:
        """All three side by side in the last axis, if the precision can compute them at once.

        `order` says which of their features comes where.
        """
        ...


class Blocks(Protocol):
    """What the decoder asks of a set of operators."""

    opset: int

    def prepare(self, graph: GraphWriter) -> None:
        """Write what all layers share: mask and rotary angles."""
        ...

    def norm(self, graph: GraphWriter, x: str, weight: str) -> str:
        """RMSNorm over the last axis."""
        ...

    def add_norm(
        self, graph: GraphWriter, x: str, y: str, weight: str, scope: str
    ) -> tuple[str, str]:
        """The sum, and its RMSNorm as the first value of the next `scope`."""
        ...

    def attend(self, graph: GraphWriter, layer: int, project: Project) -> str:
        """Everything between the projections q, k, v and the output projection: [B, S, H*D]."""
        ...


def blocks_of(operators: Operators, architecture: Architecture) -> Blocks:
    """The set of operators by its name."""
    kinds: dict[Operators, type[Plain | Opset23 | Microsoft]] = {
        "plain": Plain,
        "opset23": Opset23,
        "microsoft": Microsoft,
    }
    return kinds[operators](architecture)


class Plain:
    """Operators of opset 18 that every engine runs."""

    opset = 18

    def __init__(self, architecture: Architecture):
        self._a = architecture
        self._bias_B1ST = ""
        self._rotation = ("", "")

    def prepare(self, graph: GraphWriter) -> None:
        self._bias_B1ST = _bias(graph, _visible(graph, self._a.sliding_window))
        self._rotation = _rotation(graph, self._a, axes=(1, 3))

    def norm(self, graph: GraphWriter, x: str, weight: str) -> str:
        # Written as Pow-ReduceMean-Add-Sqrt-Div-Mul, the pattern that engines know and fuse.
        square = graph.add("Pow", x, graph.number(2.0))
        mean = graph.add("ReduceMean", square, graph.ints(-1), keepdims=1)
        root = graph.add("Sqrt", graph.add("Add", mean, graph.number(self._a.rms_norm_eps)))
        return graph.add("Mul", graph.add("Div", x, root), weight)

    def add_norm(
        self, graph: GraphWriter, x: str, y: str, weight: str, scope: str
    ) -> tuple[str, str]:
        return _add_norm(self, graph, x, y, weight, scope)

    def attend(self, graph: GraphWriter, layer: int, project: Project) -> str:
        heads, kv, dim = self._a.heads, self._a.kv_heads, self._a.head_dim
        q_BHSD, k_BKSD, v_BKSD = (_heads(self, graph, self._a, layer, x, project) for x in "qkv")
        q_BHSD = self._rotate(graph, q_BHSD)
        k_BKSD = self._rotate(graph, k_BKSD)
        (past_k, past_v), (present_k, present_v) = past_names(layer), present_names(layer)
        k_BKTD = graph.add("Concat", past_k, k_BKSD, out=present_k, axis=2)
        v_BKTD = graph.add("Concat", past_v, v_BKSD, out=present_v, axis=2)

        # The queries of one group stand below each other, [B, KV, H/KV*S, D], so that keys and
        # values need not be repeated.
        q_BHSD = graph.add("Mul", q_BHSD, graph.number(dim**-0.5))
        grouped = graph.ints(0, kv, -1, 0)
        single = graph.ints(0, heads, -1, 0)
        k_BKDT = graph.add("Transpose", k_BKTD, perm=[0, 1, 3, 2])
        score = graph.add("MatMul", graph.add("Reshape", q_BHSD, grouped), k_BKDT)
        score_BHST = graph.add("Add", graph.add("Reshape", score, single), self._bias_B1ST)
        p_BHST = graph.add("Softmax", score_BHST, axis=-1)
        mixed = graph.add("MatMul", graph.add("Reshape", p_BHST, grouped), v_BKTD)
        return _joined(graph, graph.add("Reshape", mixed, single), self._a)

    def _rotate(self, graph: GraphWriter, x_BHSD: str) -> str:
        cos, sin = self._rotation
        half = graph.ints(self._a.head_dim // 2, self._a.head_dim // 2)
        first, second = graph.add_many("Split", [x_BHSD, half], [None, None], axis=-1)
        turned_first = graph.add("Sub", graph.add("Mul", first, cos), graph.add("Mul", second, sin))
        turned_second = graph.add(
            "Add", graph.add("Mul", second, cos), graph.add("Mul", first, sin)
        )
        return graph.add("Concat", turned_first, turned_second, axis=-1)


class Opset23:
    """ONNX's own Attention, RMSNormalization and RotaryEmbedding."""

    opset = 23

    def __init__(self, architecture: Architecture):
        self._a = architecture
        self._visible_B1ST = ""
        self._rotation = ("", "")

    def prepare(self, graph: GraphWriter) -> None:
        # True or false: engines disagree on which finite number hides a key in this operator.
        self._visible_B1ST = _visible(graph, self._a.sliding_window)
        self._rotation = _rotation(graph, self._a, axes=(2,))

    def norm(self, graph: GraphWriter, x: str, weight: str) -> str:
        return graph.add("RMSNormalization", x, weight, axis=-1, epsilon=self._a.rms_norm_eps)

    def add_norm(
        self, graph: GraphWriter, x: str, y: str, weight: str, scope: str
    ) -> tuple[str, str]:
        return _add_norm(self, graph, x, y, weight, scope)

    def attend(self, graph: GraphWriter, layer: int, project: Project) -> str:
        q_BHSD, k_BKSD, v_BKSD = (_heads(self, graph, self._a, layer, x, project) for x in "qkv")
        q_BHSD = graph.add("RotaryEmbedding", q_BHSD, *self._rotation)
        k_BKSD = graph.add("RotaryEmbedding", k_BKSD, *self._rotation)
        mixed_BHSD, _, _ = graph.add_many(
            "Attention",
            [q_BHSD, k_BKSD, v_BKSD, self._visible_B1ST, *past_names(layer)],
            [None, *present_names(layer)],
            scale=self._a.head_dim**-0.5,
        )
        return _joined(graph, mixed_BHSD, self._a)


class Microsoft(Plain):
    """onnxruntime's GroupQueryAttention, with mask and rotation of our own.

    Left to itself the operator takes padding to stand on the right, and counts positions itself.
    It refuses several new tokens on a cache in batches of more than one.
    """

    opset = 23  # for RotaryEmbedding

    def __init__(self, architecture: Architecture):
        super().__init__(architecture)
        if architecture.head_dim % 16:
            raise BadInput(
                f"export.operators: is microsoft; head_dim is {architecture.head_dim}, which is no "
                "multiple of 16; plain or opset23 would do"
            )
        self._lengths = ("", "")

    def prepare(self, graph: GraphWriter) -> None:
        total = graph.add("Shape", MASK, start=1, end=2)
        last = graph.add("Cast", graph.add("Sub", total, graph.ints(1)), to=INT32)
        self._lengths = (
            graph.add("Expand", last, graph.add("Shape", IDS, end=1)),
            graph.add("Cast", total, to=INT32),
        )
        self._bias_B1ST = self._hidden(graph)

    def _hidden(self, graph: GraphWriter) -> str:
        """[B, 1, S, T]: 0 where a key counts, MASKED elsewhere; the operator hides what is later.

        In few operators: for one token of a small model each takes a thousandth of the time.
        """
        if self._a.sliding_window is not None:
            return _bias(graph, _visible(graph, self._a.sliding_window))
        keep_B11T = graph.add("Unsqueeze", graph.add("Cast", MASK, to=BOOL), graph.ints(1, 2))
        zero_BS = graph.add("Mul", graph.add("Cast", IDS, to=FLOAT), graph.number(0.0))
        zero_B1S1 = graph.add("Unsqueeze", zero_BS, graph.ints(1, 3))
        return graph.add("Where", keep_B11T, zero_B1S1, graph.number(MASKED))

    def add_norm(
        self, graph: GraphWriter, x: str, y: str, weight: str, scope: str
    ) -> tuple[str, str]:
        graph.at(scope)
        normed, _, _, total = graph.add_many(
            "SkipSimplifiedLayerNormalization",
            [x, y, weight],
            [None, "", "", None],
            domain=MICROSOFT,
            epsilon=self._a.rms_norm_eps,
        )
        return total, normed

    def attend(self, graph: GraphWriter, layer: int, project: Project) -> str:
        q_BSF, k_BSF, v_BSF = self._queries(graph, layer, project)
        cache, new_cache = past_names(layer), present_names(layer)
        inputs = [q_BSF, k_BSF, v_BSF, *cache, *self._lengths]
        no_table = ["", "", ""]  # cosine, sine and positions: the rotation is done
        mixed_BSF, _, _ = graph.add_many(
            "GroupQueryAttention",
            [*inputs, *no_table, self._bias_B1ST],
            [None, *new_cache],
            domain=MICROSOFT,
            num_heads=self._a.heads,
            kv_num_heads=self._a.kv_heads,
            scale=self._a.head_dim**-0.5,
        )
        return mixed_BSF

    def _queries(self, graph: GraphWriter, layer: int, project: Project) -> tuple[str, str, str]:
        """q and k rotated, and v, each [B, S, heads*D]; or side by side in the first."""
        heads, kv, dim = self._a.heads, self._a.kv_heads, self._a.head_dim
        joined = project.joined(None if self._a.qk_norm else self._neighbours())
        if joined is None:
            q, k, v = (project(which) for which in "qkv")
        elif self._a.qk_norm:
            lengths = graph.ints(heads * dim, kv * dim, kv * dim)
            q, k, v = graph.add_many("Split", [joined, lengths], [None] * 3, axis=-1)
        else:
            # As one wide head, whose last features, the values, are turned by an angle of 0.
            angles = self._angles(graph, turned=heads + kv, still=kv * dim // 2)
            return graph.add("RotaryEmbedding", joined, *angles, num_heads=1, interleaved=1), "", ""
        return self._turned(graph, layer, "q", q), self._turned(graph, layer, "k", k), v

    def _angles(self, graph: GraphWriter, turned: int = 1, still: int = 0) -> tuple[str, str]:
        """Cosine and sine for the form in which the layers rotate; the first one writes them."""
        if self._rotation == ("", ""):
            self._rotation = _rotation(graph, self._a, (2,), turned, still)
        return self._rotation

    def _neighbours(self) -> list[int]:
        """q, k and v in an order where features that turn together are neighbours in their head.

        The product of a query and a key does not depend on it, and values stay as they are.
        """
        a = self._a
        order_HD = np.arange((a.heads + 2 * a.kv_heads) * a.head_dim).reshape(-1, a.head_dim)
        turned = order_HD[: a.heads + a.kv_heads]
        first, second = np.split(turned, 2, axis=1)
        turned[:] = np.stack([first, second], axis=2).reshape(turned.shape)
        order: list[int] = order_HD.reshape(-1).tolist()
        return order

    def _turned(self, graph: GraphWriter, layer: int, which: str, x_BSF: str) -> str:
        """Queries or keys as [B, S, heads*D], normed where the family norms them, and rotated."""
        count = self._a.heads if which == "q" else self._a.kv_heads
        if self._a.qk_norm:
            x_BSHD = graph.add("Reshape", x_BSF, graph.ints(0, 0, count, self._a.head_dim))
            weight = f"model.layers.{layer}.self_attn.{which}_norm.weight"
            x_BSHD = self.norm(graph, x_BSHD, weight)
            x_BSF = graph.add("Reshape", x_BSHD, graph.ints(0, 0, count * self._a.head_dim))
        return graph.add("RotaryEmbedding", x_BSF, *self._angles(graph), num_heads=count)


def _add_norm(
    blocks: Blocks, graph: GraphWriter, x: str, y: str, weight: str, scope: str
) -> tuple[str, str]:
    total = graph.add("Add", x, y)
    graph.at(scope)
    return total, blocks.norm(graph, total, weight)


def _visible(graph: GraphWriter, window: int | None) -> str:
    """[B, 1, S, T]: whether a query may look at a key; once for all layers."""
    zero, one = graph.integer(0), graph.integer(1)
    total = graph.add("Gather", graph.add("Shape", MASK), one, axis=0)
    new = graph.add("Gather", graph.add("Shape", IDS), one, axis=0)
    # Columns of the cache, not position_ids: the order of tokens is that of their arrival.
    k_T = graph.add("Range", zero, total, one)
    q_S = graph.add("Range", graph.add("Sub", total, new), total, one)
    q_S1 = graph.add("Unsqueeze", q_S, graph.ints(1))
    causal_ST = graph.add("LessOrEqual", k_T, q_S1)
    if window is not None:
        recent_ST = graph.add("Less", graph.add("Sub", q_S1, k_T), graph.integer(window))
        causal_ST = graph.add("And", causal_ST, recent_ST)
    keep_B11T = graph.add("Unsqueeze", graph.add("Cast", MASK, to=BOOL), graph.ints(1, 2))
    return graph.add("And", causal_ST, keep_B11T)


def _bias(graph: GraphWriter, visible_B1ST: str) -> str:
    """0 where a query may look, MASKED elsewhere."""
    return graph.add("Where", visible_B1ST, graph.number(0.0), graph.number(MASKED))


def _rotation(
    graph: GraphWriter, a: Architecture, axes: tuple[int, ...], turned: int = 1, still: int = 0
) -> tuple[str, str]:
    """Cosine and sine of the rotary angles: [B, S] with `axes` added, the last of them D/2 wide.

    Or wider: `turned` times that, and `still` angles of 0 behind.
    """
    frequency = a.rope_theta ** (-np.arange(0, a.head_dim, 2, dtype=np.float64) / a.head_dim)
    frequency, sharpness = scaled(frequency, a.rope_theta, a.rope_scaling)
    frequency = np.concatenate([np.tile(frequency, turned), np.zeros(still)])
    position_BS = graph.add("Cast", POSITIONS, to=FLOAT)
    position = graph.add("Unsqueeze", position_BS, graph.ints(*axes))
    angle = graph.add("Mul", position, graph.constant(frequency, np.float32))
    cos, sin = graph.add("Cos", angle), graph.add("Sin", angle)
    if sharpness == 1.0:
        return cos, sin
    factor = graph.constant(np.where(frequency == 0, 1, sharpness), np.float32)
    return graph.add("Mul", cos, factor), graph.add("Mul", sin, factor)


def _heads(
    blocks: Blocks, graph: GraphWriter, a: Architecture, layer: int, which: str, project: Project
) -> str:
    """One of q, k, v as [B, heads, S, D], normed where the family norms it."""
    count = a.heads if which == "q" else a.kv_heads
    x = graph.add("Reshape", project(which), graph.ints(0, 0, count, a.head_dim))
    if a.qk_norm and which != "v":
        x = blocks.norm(graph, x, f"model.layers.{layer}.self_attn.{which}_norm.weight")
    return graph.add("Transpose", x, perm=[0, 2, 1, 3])


def _joined(graph: GraphWriter, mixed_BHSD: str, a: Architecture) -> str:
    mixed_BSHD = graph.add("Transpose", mixed_BHSD, perm=[0, 2, 1, 3])
    return graph.add("Reshape", mixed_BSHD, graph.ints(0, 0, a.heads * a.head_dim))
