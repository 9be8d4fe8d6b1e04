"""ONNX bundles of random tiny models, and ways to spoil their graphs, for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from artifacts.architecture import Architecture
from artifacts.hf_model import read_model
from artifacts.onnx_bundle import GRAPH, OnnxModel
from artifacts.tokenizer_files import read_tokenizer
from stages.convert.reference import reference_logits
from stages.export.agreement import Agreement, run_cases
from stages.export.bundle import write_bundle
from stages.export.cases import sweep
from stages.export.engines import Lane
from stages.export.references import Reference
from stages.export.structure import structure_problems
from tests.tiny_models import write_hf

LONGEST = 18
THRESHOLD = 1e-5


def write_tiny_bundle(
    directory: Path,
    a: Architecture,
    weights: dict[str, np.ndarray] | None = None,
    **kinds: Any,
) -> dict[str, np.ndarray]:
    """Write a Hugging Face directory `hf` and its bundle `bundle`; returns the weights."""
    weights = write_hf(directory / "hf", a, weights)
    (directory / "bundle").mkdir()
    model, tokenizer = read_model(directory / "hf"), read_tokenizer(directory / "hf")
    write_bundle(directory / "bundle", model, tokenizer, {"key": "value"}, **kinds)
    return weights


def exact(a: Architecture, weights: dict[str, np.ndarray]) -> Reference:
    """The float64 reference in the place of MindSpore."""

    def reference(ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return reference_logits(a, weights, ids, mask, positions)

    return reference


def proof(bundle: Path, a: Architecture, weights: dict[str, np.ndarray]) -> Agreement:
    """What the export stage does with a bundle, with fewer tokens."""
    graph = onnx.load(str(bundle / GRAPH), load_external_data=False)
    cases = sweep(a.vocab_size, LONGEST, seed=0)
    return Agreement(
        threshold=THRESHOLD,
        longest=LONGEST,
        structure=structure_problems(graph, a),
        cases=run_cases([Lane(OnnxModel(bundle, threads=1))], exact(a, weights), cases, THRESHOLD)[
            0
        ],
    )


def change_graph(bundle: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    """Rewrite a bundle's graph; its weights stay where they are."""
    model = onnx.load(str(bundle / GRAPH), load_external_data=False)
    change(model.graph)
    (bundle / GRAPH).write_bytes(model.SerializeToString())


def set_constant(graph: onnx.GraphProto, old: object, new: object, dtype: type) -> None:
    """Replace the one shared constant that equals `old`."""
    wanted = np.asarray(old, dtype)
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        value = numpy_helper.to_array(tensor)
        if value.dtype == wanted.dtype and np.array_equal(value, wanted):
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(new, dtype), tensor.name))
            return
    raise AssertionError(f"the graph has no constant {old}")


def node(graph: onnx.GraphProto, operator: str, nth: int = 0) -> onnx.NodeProto:
    """The nth node with this operator."""
    return [each for each in graph.node if each.op_type == operator][nth]
