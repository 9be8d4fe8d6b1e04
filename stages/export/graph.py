"""A small hand for writing ONNX graphs: operators in order, constants stored once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""
IR_VERSIONS = {18: 8, 23: 11}
"""Opset -> the file format's version, the oldest that has it, for old engines' sake."""

Dim = int | str
"""A fixed length, or the name of a dynamic axis."""


class GraphWriter:
    """Collects a graph's values and nodes; what adds a node returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._scope = ""

    def at(self, scope: str) -> None:
        """Prefix of the names of the nodes that follow, such as `layers.0/attn`."""
        self._scope = scope

    def input(self, name: str, dtype: int, shape: Sequence[Dim]) -> str:
        """Declare a graph input."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, name: str, dtype: int, shape: Sequence[Dim]) -> None:
        """Declare a value as a graph output."""
        self.outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def constant(self, value: Any, dtype: Any) -> str:
        """A small constant; equal ones are stored once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"const.{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """A one-dimensional int64 constant: a shape, axes or slice bounds."""
        return self.constant(list(values), np.int64)

    def number(self, value: float) -> str:
        """A float32 scalar constant."""
        return self.constant(value, np.float32)

    def integer(self, value: int) -> str:
        """An int64 scalar constant."""
        return self.constant(value, np.int64)

    def add(self, operator: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Add a node with one output, named `out` or after the scope and operator."""
        return self.add_many(operator, inputs, [out], **attributes)[0]

    def add_many(
        self, operator: str, inputs: Sequence[str], outs: Sequence[str | None], **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs; "" leaves one out."""
        label = f"{self._scope}/{operator}.{len(self.nodes)}"
        single = len(outs) == 1
        names = [
            (label if single else f"{label}:{i}") if out is None else out
            for i, out in enumerate(outs)
        ]
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=label, **attributes))
        return names

    def joined(self, names: Sequence[str], order: Sequence[int] | None = None) -> str:
        """Constants below each other, their rows in `order` if given; engines do it at loading."""
        value = self.add("Concat", *names, axis=0)
        return value if order is None else self.add("Gather", value, self.ints(*order), axis=0)

    def model(
        self,
        name: str,
        weights: Sequence[onnx.TensorProto],
        metadata: dict[str, str],
        opset: int,
    ) -> onnx.ModelProto:
        """The finished model; `weights` are further initialisers, their bytes here or outside."""
        graph = helper.make_graph(
            self.nodes, name, self.inputs, self.outputs, [*self.initializers, *weights]
        )
        opsets = [helper.make_opsetid("", opset)]
        if any(node.domain == MICROSOFT for node in self.nodes):
            opsets.append(helper.make_opsetid(MICROSOFT, 1))
        model = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=IR_VERSIONS[opset],
            producer_name="mindcycle",
        )
        helper.set_model_props(model, metadata)
        return model


FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
BOOL = TensorProto.BOOL
