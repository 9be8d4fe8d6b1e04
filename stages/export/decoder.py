"""The decoder as an ONNX graph with a key/value cache and no length baked in.

Two things vary: the operators of attention, norms and rotation (`attention`), and how weights are
stored and multiplied (`linears`). Shapes: B batch, S new tokens, P cached ones, T = P + S, C hidden
size.
"""

from collections.abc import Collection, Sequence

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
from stages.export.adapters import add_lora
from stages.export.attention import Blocks
from stages.export.graph import FLOAT, INT64, GraphWriter
from stages.export.linears import Linears


def build_decoder(
    architecture: Architecture, blocks: Blocks, linears: Linears, lora: Collection[str] = ()
) -> GraphWriter:
    """Write the whole graph. Its weights are referred to by the names that `linears` stores.

    `lora` names the projections that adapters may be added to.
    """
    if lora:
        linears = WithLora(linears, architecture, lora)
    graph = GraphWriter()
    kv, dim = architecture.kv_heads, architecture.head_dim
    graph.input(IDS, INT64, [BATCH, SEQUENCE])
    graph.input(MASK, INT64, [BATCH, TOTAL])
    graph.input(POSITIONS, INT64, [BATCH, SEQUENCE])
    for i in range(architecture.layers):
        for name in past_names(i):
            graph.input(name, FLOAT, [BATCH, kv, PAST, dim])

    graph.at("prepare")
    blocks.prepare(graph)
    x_BSC = linears.embed(graph)
    norms = [f"model.layers.{i}.input_layernorm.weight" for i in range(architecture.layers)]
    norms.append("model.norm.weight")
    scopes = [*(f"layers.{i}/attention" for i in range(architecture.layers)), "head"]
    graph.at(scopes[0])
    h_BSC = blocks.norm(graph, x_BSC, norms[0])
    for i in range(architecture.layers):
        at = f"model.layers.{i}."
        a_BSC = _attention(graph, architecture, blocks, linears, i, h_BSC)
        norm = at + "post_attention_layernorm.weight"
        x_BSC, h_BSC = blocks.add_norm(graph, x_BSC, a_BSC, norm, f"layers.{i}/mlp")
        m_BSC = _mlp(graph, linears, at + "mlp.", h_BSC, architecture.mlp_bias)
        x_BSC, h_BSC = blocks.add_norm(graph, x_BSC, m_BSC, norms[i + 1], scopes[i + 1])
    linears.head(graph, h_BSC)

    graph.output(LOGITS, FLOAT, [BATCH, SEQUENCE, architecture.vocab_size])
    for i in range(architecture.layers):
        for name in present_names(i):
            graph.output(name, FLOAT, [BATCH, kv, TOTAL, dim])
    return graph


def _attention(
    graph: GraphWriter, a: Architecture, blocks: Blocks, linears: Linears, layer: int, h_BSC: str
) -> str:
    at = f"model.layers.{layer}.self_attn."

    project = Projections(graph, linears, h_BSC, at, a.qkv_bias)
    joined = blocks.attend(graph, layer, project)
    return _linear(graph, linears, joined, at + "o_proj", a.attention_bias)


class Projections:
    """q, k and v of one layer, written when they are asked for."""

    def __init__(self, graph: GraphWriter, linears: Linears, h_BSC: str, at: str, biased: bool):
        self._graph, self._linears, self._h_BSC = graph, linears, h_BSC
        self._at, self._biased = at, biased

    def __call__(self, which: str) -> str:
        return _linear(
            self._graph, self._linears, self._h_BSC, f"{self._at}{which}_proj", self._biased
        )

    def joined(self, order: Sequence[int] | None = None) -> str | None:
        names = [f"{self._at}{which}_proj" for which in "qkv"]
        weights = [f"{name}.weight" for name in names]
        y = self._linears.joined(self._graph, self._h_BSC, weights, order)
        if y is None or not self._biased:
            return y
        bias = self._graph.joined([f"{name}.bias" for name in names], order)
        return self._graph.add("Add", y, bias)


def _mlp(graph: GraphWriter, linears: Linears, at: str, h_BSC: str, biased: bool) -> str:
    gate = _linear(graph, linears, h_BSC, at + "gate_proj", biased)
    up = _linear(graph, linears, h_BSC, at + "up_proj", biased)
    silu = graph.add("Mul", gate, graph.add("Sigmoid", gate))
    return _linear(graph, linears, graph.add("Mul", silu, up), at + "down_proj", biased)


def _linear(graph: GraphWriter, linears: Linears, x: str, name: str, biased: bool) -> str:
    y = linears.linear(graph, x, f"{name}.weight")
    return graph.add("Add", y, f"{name}.bias") if biased else y


class WithLora:
    """Linears with a place for an adapter on some of them."""

    def __init__(self, linears: Linears, architecture: Architecture, lora: Collection[str]):
        self._linears, self._lora = linears, lora
        self._shapes = architecture.tensor_shapes()
        self.store, self.embed, self.head = linears.store, linears.embed, linears.head

    def linear(self, graph: GraphWriter, x: str, name: str) -> str:
        y = self._linears.linear(graph, x, name)
        module = name.removesuffix(".weight")
        if not self._has_place(name):
            return y
        return add_lora(graph, x, y, module, self._shapes[name])

    def joined(
        self, graph: GraphWriter, x: str, names: Sequence[str], order: Sequence[int] | None = None
    ) -> str | None:
        if any(map(self._has_place, names)):
            return None
        return self._linears.joined(graph, x, names, order)

    def _has_place(self, name: str) -> bool:
        return name.removesuffix(".weight").rpartition(".")[2] in self._lora
