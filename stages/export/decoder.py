"""The decoder as an ONNX graph: plain operators, a key/value cache, no length baked in.

Shapes in comments: B batch, S new tokens, P cached tokens, T = P + S, H query heads, KV key/value
heads, D features of a head, C hidden. No constant below depends on B, S, P or T: reshapes say 0
(keep this axis) and -1 (what is left), and the rotary angles are computed from `position_ids`, so
there is no table that could end.
"""

import numpy as np

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
from artifacts.rope import scaled
from stages.export.graph import BOOL, FLOAT, INT64, GraphWriter

MASKED = float(np.finfo(np.float32).min)
"""Added to a masked score. Not -inf: a row that sees nothing would be NaN and spoil the rest."""


def transposed(name: str) -> str:
    """Name of the initialiser that holds a linear weight as [in, out], for MatMul."""
    return f"{name}.T"


def stored_weights(architecture: Architecture) -> dict[str, tuple[str, bool]]:
    """Initialiser name -> (Hugging Face tensor it holds, whether transposed).

    The embedding stays [V, C] and, when tied, serves as head through a Transpose in the graph.
    """
    stored = {}
    for name, shape in architecture.tensor_shapes().items():
        flip = len(shape) == 2 and name != "model.embed_tokens.weight"
        stored[transposed(name) if flip else name] = (name, flip)
    return stored


def build_decoder(architecture: Architecture) -> GraphWriter:
    """Write the whole graph. Its weights are referred to by the names of `stored_weights`."""
    graph = GraphWriter()
    kv, dim = architecture.kv_heads, architecture.head_dim
    graph.input(IDS, INT64, [BATCH, SEQUENCE])
    graph.input(MASK, INT64, [BATCH, TOTAL])
    graph.input(POSITIONS, INT64, [BATCH, SEQUENCE])
    for i in range(architecture.layers):
        for name in past_names(i):
            graph.input(name, FLOAT, [BATCH, kv, PAST, dim])

    graph.at("prepare")
    bias_B1ST = _mask_bias(graph, architecture.sliding_window)
    rotation = _rotation(graph, architecture)
    x_BSC = graph.add("Gather", "model.embed_tokens.weight", IDS, axis=0)
    for i in range(architecture.layers):
        graph.at(f"layers.{i}/attention")
        at = f"model.layers.{i}."
        h_BSC = _rms_norm(graph, x_BSC, at + "input_layernorm.weight", architecture.rms_norm_eps)
        a_BSC = _attention(graph, architecture, i, h_BSC, rotation, bias_B1ST)
        x_BSC = graph.add("Add", x_BSC, a_BSC)
        graph.at(f"layers.{i}/mlp")
        norm = at + "post_attention_layernorm.weight"
        h_BSC = _rms_norm(graph, x_BSC, norm, architecture.rms_norm_eps)
        x_BSC = graph.add("Add", x_BSC, _mlp(graph, at + "mlp.", h_BSC, architecture.mlp_bias))
    graph.at("head")
    x_BSC = _rms_norm(graph, x_BSC, "model.norm.weight", architecture.rms_norm_eps)
    head_CV = transposed("lm_head.weight")
    if architecture.tied_head:
        head_CV = graph.add("Transpose", "model.embed_tokens.weight", perm=[1, 0])
    # The output comes from the operator itself: behind an Identity some engines rename it.
    graph.add("MatMul", x_BSC, head_CV, out=LOGITS)

    graph.output(LOGITS, FLOAT, [BATCH, SEQUENCE, architecture.vocab_size])
    for i in range(architecture.layers):
        for name in present_names(i):
            graph.output(name, FLOAT, [BATCH, kv, TOTAL, dim])
    return graph


def _mask_bias(graph: GraphWriter, window: int | None) -> str:
    """[B, 1, S, T]: 0 where a query may look, MASKED elsewhere; once for all layers."""
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
    visible_B1ST = graph.add("And", causal_ST, keep_B11T)
    return graph.add("Where", visible_B1ST, graph.number(0.0), graph.number(MASKED))


def _rotation(graph: GraphWriter, architecture: Architecture) -> tuple[str, str]:
    """Cosine and sine of the rotary angles, each [B, 1, S, D/2]."""
    dim = architecture.head_dim
    frequency = architecture.rope_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    frequency, sharpness = scaled(frequency, architecture.rope_theta, architecture.rope_scaling)
    position_BS = graph.add("Cast", POSITIONS, to=FLOAT)
    position_B1S1 = graph.add("Unsqueeze", position_BS, graph.ints(1, 3))
    angle = graph.add("Mul", position_B1S1, graph.constant(frequency, np.float32))
    cos, sin = graph.add("Cos", angle), graph.add("Sin", angle)
    if sharpness == 1.0:
        return cos, sin
    factor = graph.number(sharpness)
    return graph.add("Mul", cos, factor), graph.add("Mul", sin, factor)


def _rms_norm(graph: GraphWriter, x: str, weight: str, eps: float) -> str:
    # Written as Pow-ReduceMean-Add-Sqrt-Div-Mul, the pattern that engines know and fuse.
    square = graph.add("Pow", x, graph.number(2.0))
    mean = graph.add("ReduceMean", square, graph.ints(-1), keepdims=1)
    root = graph.add("Sqrt", graph.add("Add", mean, graph.number(eps)))
    return graph.add("Mul", graph.add("Div", x, root), weight)


def _attention(
    graph: GraphWriter,
    architecture: Architecture,
    layer: int,
    h_BSC: str,
    rotation: tuple[str, str],
    bias_B1ST: str,
) -> str:
    heads, kv, dim = architecture.heads, architecture.kv_heads, architecture.head_dim
    at = f"model.layers.{layer}.self_attn."
    q_BHSD = _project(graph, architecture, at + "q", h_BSC, heads)
    k_BKSD = _project(graph, architecture, at + "k", h_BSC, kv)
    v_BKSD = _project(graph, architecture, at + "v", h_BSC, kv)
    q_BHSD = _rotate(graph, q_BHSD, rotation, dim)
    k_BKSD = _rotate(graph, k_BKSD, rotation, dim)
    (past_k, past_v), (present_k, present_v) = past_names(layer), present_names(layer)
    k_BKTD = graph.add("Concat", past_k, k_BKSD, out=present_k, axis=2)
    v_BKTD = graph.add("Concat", past_v, v_BKSD, out=present_v, axis=2)

    # The queries of one group stand below each other, [B, KV, H/KV*S, D], so that keys and values
    # need not be repeated.
    q_BHSD = graph.add("Mul", q_BHSD, graph.number(dim**-0.5))
    grouped = graph.ints(0, kv, -1, 0)
    single = graph.ints(0, heads, -1, 0)
    k_BKDT = graph.add("Transpose", k_BKTD, perm=[0, 1, 3, 2])
    score = graph.add("MatMul", graph.add("Reshape", q_BHSD, grouped), k_BKDT)
    score_BHST = graph.add("Add", graph.add("Reshape", score, single), bias_B1ST)
    p_BHST = graph.add("Softmax", score_BHST, axis=-1)
    mixed = graph.add("MatMul", graph.add("Reshape", p_BHST, grouped), v_BKTD)
    mixed_BHSD = graph.add("Reshape", mixed, single)
    mixed_BSHD = graph.add("Transpose", mixed_BHSD, perm=[0, 2, 1, 3])
    joined = graph.add("Reshape", mixed_BSHD, graph.ints(0, 0, heads * dim))
    return _linear(graph, joined, at + "o_proj", architecture.attention_bias)


def _project(
    graph: GraphWriter, architecture: Architecture, name: str, h_BSC: str, heads: int
) -> str:
    """One of q, k, v as [B, heads, S, D], with bias or norm where the family has them."""
    y = _linear(graph, h_BSC, f"{name}_proj", architecture.qkv_bias)
    y = graph.add("Reshape", y, graph.ints(0, 0, heads, architecture.head_dim))
    if architecture.qk_norm and not name.endswith(".v"):
        y = _rms_norm(graph, y, f"{name}_norm.weight", architecture.rms_norm_eps)
    return graph.add("Transpose", y, perm=[0, 2, 1, 3])


def _rotate(graph: GraphWriter, x_BHSD: str, rotation: tuple[str, str], dim: int) -> str:
    cos, sin = rotation
    half = graph.ints(dim // 2, dim // 2)
    first, second = graph.add_many("Split", [x_BHSD, half], [None, None], axis=-1)
    turned_first = graph.add("Sub", graph.add("Mul", first, cos), graph.add("Mul", second, sin))
    turned_second = graph.add("Add", graph.add("Mul", second, cos), graph.add("Mul", first, sin))
    return graph.add("Concat", turned_first, turned_second, axis=-1)


def _mlp(graph: GraphWriter, at: str, h_BSC: str, biased: bool) -> str:
    gate = _linear(graph, h_BSC, at + "gate_proj", biased)
    up = _linear(graph, h_BSC, at + "up_proj", biased)
    silu = graph.add("Mul", gate, graph.add("Sigmoid", gate))
    return _linear(graph, graph.add("Mul", silu, up), at + "down_proj", biased)


def _linear(graph: GraphWriter, x: str, name: str, biased: bool) -> str:
    y = graph.add("MatMul", x, transposed(name + ".weight"))
    return graph.add("Add", y, name + ".bias") if biased else y
