"""The engines that a graph is proved in, behind one way to run it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any, Protocol

import numpy as np

from artifacts.onnx_bundle import (
    IDS,
    LOGITS,
    MASK,
    POSITIONS,
    OnnxModel,
    Past,
    graph_file,
    past_names,
    present_names,
)
from artifacts.onnx_kinds import Operators
from stages.export.cases import Case
from stages.export.kinds import EngineName

PACKAGES: dict[EngineName, str] = {
    "onnxruntime": "onnxruntime",
    "reference": "onnx",
    "openvino": "openvino",
}

Feed = dict[str, np.ndarray]


class Engine(Protocol):
    """One way to run a bundle's graph; `OnnxModel` is one."""

    vocab_size: int
    kv_heads: int
    head_dim: int

    def forward(
        self, ids_BS: np.ndarray, mask_BT: np.ndarray, positions_BS: np.ndarray, past: Past | None
    ) -> tuple[np.ndarray, Past]:
        """One step: S new tokens after P cached ones; logits [B, S, V], and the cache of all."""
        ...


@dataclass(frozen=True)
class Lane:
    """An engine, and which cases it is given."""

    engine: Engine
    takes: Callable[[Case], bool] = lambda case: True


SLOW = 64
"""Tokens; the reference evaluator runs operator by operator in Python, and goes no further."""


def lane(name: EngineName, operators: Operators, model: OnnxModel) -> Lane:
    """An engine with the graph of a bundle that onnxruntime has loaded, and what it can run."""

    def takes(case: Case) -> bool:
        batch, total = case.ids_BT.shape
        if name == "reference" and total > SLOW:
            return False
        several = case.past and total - case.past > 1 and case.steps != 1
        return not (operators == "microsoft" and batch > 1 and several)

    return Lane(load_engine(name, model), takes)


def missing(name: EngineName) -> bool:
    """Whether an engine is not installed."""
    return util.find_spec(PACKAGES[name]) is None


def version(name: EngineName) -> str:
    """The engine's version."""
    return metadata.version(PACKAGES[name])


def load_engine(name: EngineName, model: OnnxModel) -> Engine:
    """The engine, with the graph of a bundle that onnxruntime has loaded already."""
    if name == "onnxruntime":
        return model
    path = str(graph_file(model.directory))
    return OtherEngine(model, _openvino(path) if name == "openvino" else _reference(path))


class WithAdapter:
    """onnxruntime with one of its adapters switched on."""

    def __init__(self, model: OnnxModel, adapter: str):
        self._model, self._adapter = model, adapter
        self.vocab_size, self.kv_heads = model.vocab_size, model.kv_heads
        self.head_dim = model.head_dim

    def forward(
        self, ids_BS: np.ndarray, mask_BT: np.ndarray, positions_BS: np.ndarray, past: Past | None
    ) -> tuple[np.ndarray, Past]:
        return self._model.forward(ids_BS, mask_BT, positions_BS, past, self._adapter)


class OtherEngine:
    """An engine that takes inputs by name and gives outputs by name."""

    def __init__(self, model: OnnxModel, run: Callable[[Feed], Feed]):
        self._model, self._run = model, run
        self.vocab_size, self.kv_heads = model.vocab_size, model.kv_heads
        self.head_dim = model.head_dim

    def forward(
        self, ids_BS: np.ndarray, mask_BT: np.ndarray, positions_BS: np.ndarray, past: Past | None
    ) -> tuple[np.ndarray, Past]:
        feed = {
            IDS: np.ascontiguousarray(ids_BS, np.int64),
            MASK: np.ascontiguousarray(mask_BT, np.int64),
            POSITIONS: np.ascontiguousarray(positions_BS, np.int64),
        }
        for layer, pair in enumerate(past or self._model.empty_past(len(ids_BS))):
            feed.update(zip(past_names(layer), pair, strict=True))
        found = self._run(feed)
        pairs = [present_names(layer) for layer in range(self._model.layers)]
        return found[LOGITS], [(found[key], found[value]) for key, value in pairs]


def _reference(path: str) -> Callable[[Feed], Feed]:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(path)
    names = evaluator.output_names
    return lambda feed: dict(zip(names, evaluator.run(None, feed), strict=True))


def _openvino(path: str) -> Callable[[Feed], Feed]:
    import openvino

    # Its default computes in bfloat16 where the processor has it.
    exactly: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", exactly)

    def run(feed: Feed) -> Feed:
        found = compiled(feed)
        return {name: value.copy() for key, value in found.items() for name in key.get_names()}

    return run
