"""The decoder as an ONNX graph with a key/value cache and no length baked in.

Two things vary: the operators of attention, norms and rotation (`attention`), and how weights are
stored and multiplied (`linears`). Shapes: B batch, S new tokens, P cached ones, T = P + S, C hidden
size.
"""

from collections.abc import Collection

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
    for i in range(architecture.layers):
        graph.at(f"layers.{i}/attention")
        at = f"model.layers.{i}."
        h_BSC = blocks.norm(graph, x_BSC, at + "input_layernorm.weight")
        a_BSC = _attention(graph, architecture, blocks, linears, i, h_BSC)
        x_BSC = graph.add("Add", x_BSC, a_BSC)
        graph.at(f"layers.{i}/mlp")
        h_BSC = blocks.norm(graph, x_BSC, at + "post_attention_layernorm.weight")
        x_BSC = graph.add(
            "Add", x_BSC, _mlp(graph, linears, at + "mlp.", h_BSC, architecture.mlp_bias)
        )
    graph.at("head")
    x_BSC = blocks.norm(graph, x_BSC, "model.norm.weight")
    linears.head(graph, x_BSC)

    graph.output(LOGITS, FLOAT, [BATCH, SEQUENCE, architecture.vocab_size])
    for i in range(architecture.layers):
        for name in present_names(i):
            graph.output(name, FLOAT, [BATCH, kv, TOTAL, dim])
    return graph


def _attention(
    graph: GraphWriter, a: Architecture, blocks: Blocks, linears: Linears, layer: int, h_BSC: str
) -> str:
    at = f"model.layers.{layer}.self_attn."

    def project(which: str) -> str:
        return _linear(graph, linears, h_BSC, f"{at}{which}_proj", a.qkv_bias)

    joined = blocks.attend(graph, layer, project)
    return _linear(graph, linears, joined, at + "o_proj", a.attention_bias)


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
        if module.rpartition(".")[2] not in self._lora:
            return y
        return add_lora(graph, x, y, module, self._shapes[name])
