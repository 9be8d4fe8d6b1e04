"""What can be said against a graph without running it: its interface, and lengths baked into it."""

from collections.abc import Collection, Iterator

import onnx
from onnx import TensorProto, numpy_helper, shape_inference

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
from stages.export.adapters import RANK, lora_names

Declared = dict[str, tuple[int, list[int | str]]]
"""Name -> (element type, dimensions)."""

SHAPE_INPUTS = {"Reshape": 1, "Expand": 1, "Tile": 1, "ConstantOfShape": 0}
"""Operators that take a shape as a value -> which input that is."""

# Sizes that no axis of a model has, so that a wrong product cannot look right by chance.
PRIMES = (
    {BATCH: 3, SEQUENCE: 7, PAST: 11, TOTAL: 18},
    {BATCH: 5, SEQUENCE: 13, PAST: 1, TOTAL: 14},
)


def structure_problems(
    model: onnx.ModelProto, architecture: Architecture, lora: Collection[str] = ()
) -> list[str]:
    """A sentence for everything that is wrong; weights outside the graph are not read.

    `lora` names the projections that adapters may be added to. Shapes can be inferred only where
    all operators are ONNX's own.
    """
    problems = [
        *_interface_problems(model.graph, architecture, lora),
        *_constant_shape_problems(model.graph, architecture),
        *_signed_weights(model.graph),
    ]
    if not any(node.domain for node in model.graph.node):
        problems += _inference_problems(model, architecture)
    return problems


def declared_interface(
    architecture: Architecture, lora: Collection[str] = ()
) -> tuple[Declared, Declared]:
    """The inputs and outputs that every engine we know accepts."""
    kv, dim = architecture.kv_heads, architecture.head_dim
    ints, floats = TensorProto.INT64, TensorProto.FLOAT
    inputs: Declared = {
        IDS: (ints, [BATCH, SEQUENCE]),
        MASK: (ints, [BATCH, TOTAL]),
        POSITIONS: (ints, [BATCH, SEQUENCE]),
    }
    outputs: Declared = {LOGITS: (floats, [BATCH, SEQUENCE, architecture.vocab_size])}
    for i in range(architecture.layers):
        inputs |= {name: (floats, [BATCH, kv, PAST, dim]) for name in past_names(i)}
        outputs |= {name: (floats, [BATCH, kv, TOTAL, dim]) for name in present_names(i)}
    for name, (out, *width) in architecture.tensor_shapes().items():
        module = name.removesuffix(".weight")
        if width and module.rpartition(".")[2] in lora:
            a, b = lora_names(module)
            inputs |= {a: (floats, [*width, RANK]), b: (floats, [RANK, out])}
    return inputs, outputs


def _signed_weights(graph: onnx.GraphProto) -> Iterator[str]:
    """Processors without VNNI multiply signed bytes in pairs and cut sums that are too large."""
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.INT8:
            yield f"weights {tensor.name} are signed bytes; unsigned ones would be right"


def _interface_problems(
    graph: onnx.GraphProto, architecture: Architecture, lora: Collection[str]
) -> Iterator[str]:
    wanted = declared_interface(architecture, lora)
    for role, values, declared in (
        ("input", graph.input, wanted[0]),
        ("output", graph.output, wanted[1]),
    ):
        found = {value.name: (value.type.tensor_type.elem_type, _dims(value)) for value in values}
        for name in declared.keys() - found.keys():
            yield f"{role} {name} is missing"
        for name in found.keys() - declared.keys():
            yield f"{role} {name} is not part of the interface"
        for name in declared.keys() & found.keys():
            if found[name] != declared[name]:
                yield f"{role} {name} is {_said(found[name])}, not {_said(declared[name])}"


def _constant_shape_problems(graph: onnx.GraphProto, architecture: Architecture) -> Iterator[str]:
    """Constant shapes may say "keep", "what is left" and sizes of the model; the batch never."""
    constants = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_location != TensorProto.EXTERNAL
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    fixed = set(constants) | {tensor.name for tensor in graph.initializer}
    allowed = _sizes(architecture) | {0, -1}
    for node in graph.node:
        if all(name in fixed for name in node.input):
            fixed.update(node.output)  # made of weights alone, so no dynamic axis is in it
            continue
        at = SHAPE_INPUTS.get(node.op_type)
        if at is None or len(node.input) <= at or node.input[at] not in constants:
            continue
        shape = numpy_helper.to_array(constants[node.input[at]]).reshape(-1).tolist()
        odd = [length for length in shape if length not in allowed]
        if odd:
            yield f"{node.op_type} {node.name} has the constant {odd[0]} in its shape {shape}"
        elif node.op_type == "Reshape" and shape and shape[0] not in (0, -1):
            yield f"Reshape {node.name} fixes the first axis, the batch, in its shape {shape}"


def _inference_problems(model: onnx.ModelProto, architecture: Architecture) -> Iterator[str]:
    """Infer every shape with named axes, then with two sets of primes in their place."""
    allowed = _sizes(architecture)
    try:
        inferred = _inferred(model, {})
        for value in inferred.graph.value_info:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                odd = [d for d in _dims(value) if isinstance(d, int) and d not in allowed]
                if odd:
                    yield f"value {value.name} has the constant length {odd[0]}: {_dims(value)}"
        outputs = declared_interface(architecture)[1]
        for sizes in PRIMES:
            for value in _inferred(model, sizes).graph.output:
                if value.name not in outputs:
                    continue
                wanted = [sizes.get(str(d), d) for d in outputs[value.name][1]]
                found = _dims(value)
                if any(isinstance(d, int) and d != w for d, w in zip(found, wanted, strict=True)):
                    yield f"output {value.name} is {found} at {sizes}, not {wanted}"
    except (shape_inference.InferenceError, ValueError) as error:
        yield f"shapes do not fit together: {' '.join(str(error).split())[:300]}"


def _inferred(model: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """The model with inferred shapes; `sizes` replaces named axes of the inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for value in copy.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return shape_inference.infer_shapes(copy, strict_mode=True, data_prop=True)


def _sizes(a: Architecture) -> set[int]:
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    return {
        1,
        a.heads,
        a.kv_heads,
        a.heads // a.kv_heads,
        a.head_dim,
        a.head_dim // 2,
        q,
        kv,
        a.hidden_size,
        a.intermediate_size,
        a.vocab_size,
    }


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param
        for dim in value.type.tensor_type.shape.dim
    ]


def _said(declared: tuple[int, list[int | str]]) -> str:
    return f"{TensorProto.DataType.Name(declared[0])} {declared[1]}".lower()
