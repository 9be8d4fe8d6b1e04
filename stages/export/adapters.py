"""LoRA adapters beside a base graph: `y = x W + (x A) B`, A and B chosen at each run.

A and B are inputs with a default of rank 0, which adds nothing. `.onnx_adapter` files hold them as
onnxruntime and onnxruntime-genai load them; alpha/rank is folded into B.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import numpy_helper

from artifacts.adapter import PROJECTIONS, Adapter, adapter_shapes
from artifacts.architecture import Architecture
from stages.export.graph import FLOAT, GraphWriter

RANK = "lora_rank"
"""Name of the only axis of A and B that is not the model's."""
FORMAT = 1
"""Of adapter and model, as the file says; nobody compares them yet."""


def lora_names(module: str) -> tuple[str, str]:
    """Names of A [in, rank] and B [rank, out] of a module."""
    return f"{module}.lora_A", f"{module}.lora_B"


def targets_of(adapters: Iterable[Adapter]) -> tuple[str, ...]:
    """All projections that any of them stands on."""
    found = {target for adapter in adapters for target in adapter.leaves}
    return tuple(target for target in PROJECTIONS if target in found)


def add_lora(graph: GraphWriter, x: str, y: str, module: str, shape: tuple[int, ...]) -> str:
    """`y` plus what an adapter makes of `x`; `shape` is the weight's, [out, in]."""
    out, width = shape
    names = lora_names(module)
    graph.input(names[0], FLOAT, [width, RANK])
    graph.input(names[1], FLOAT, [RANK, out])
    for name, none in zip(names, (np.zeros((width, 0)), np.zeros((0, out))), strict=True):
        graph.initializers.append(numpy_helper.from_array(none.astype(np.float32), name))
    low = graph.add("MatMul", x, names[0])
    return graph.add("Add", y, graph.add("MatMul", low, names[1]))


def write_onnx_adapter(
    path: Path, adapter: Adapter, architecture: Architecture, targets: Sequence[str]
) -> None:
    """Write the file that onnxruntime loads, for a graph with places on `targets`.

    Every place gets tensors of the adapter's largest rank, zeros where it has none or a smaller
    one: onnxruntime reuses the product of one place for another, which breaks when their ranks
    differ.
    """
    values = {}
    widest = max(len(a) for a, _ in adapter.tensors.values())
    for module, (shape_a, shape_b) in adapter_shapes(architecture, targets, widest).items():
        whole_a, whole_b = np.zeros(shape_a, np.float32), np.zeros(shape_b, np.float32)
        if module in adapter.tensors:
            a, b = adapter.tensors[module]
            whole_a[: len(a)] = a
            whole_b[:, : len(a)] = b * np.float32(adapter.scaling_of(module))
        name_a, name_b = lora_names(module)
        values[name_a] = np.ascontiguousarray(whole_a.T)
        values[name_b] = np.ascontiguousarray(whole_b.T)
    content = ort.AdapterFormat()
    content.set_adapter_version(FORMAT)
    content.set_model_version(FORMAT)
    content.set_parameters(
        {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in values.items()}
    )
    content.export_adapter(str(path))
