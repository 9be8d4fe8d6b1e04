"""Hugging Face names and layout on one side, the model's parameters on the other.

Hugging Face: linears [out, in], q, k and v apart. The model: q, k and v fused, some matrices
transposed. Whatever leaves the engine (weights, optimiser state, adapters) goes through here.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from mindspore import Parameter, Tensor, nn

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from stages.engine.model import BLOCK, Decoder


@dataclass(frozen=True)
class Slot:
    """Where one Hugging Face tensor lies: `rows` of a parameter's [out, in] form."""

    hf_name: str
    parameter: str
    rows: slice = field(default_factory=lambda: slice(None))
    transposed: bool = False
    """Whether the parameter is stored [in, out]."""

    def read(self, stored: np.ndarray) -> np.ndarray:
        """The Hugging Face tensor in the parameter's value, as a contiguous copy."""
        value = stored.T if self.transposed else stored
        return np.array(value[self.rows], order="C")

    def write(self, stored: np.ndarray, value: np.ndarray) -> None:
        """Put the Hugging Face tensor into the parameter's value."""
        view = stored.T if self.transposed else stored
        view[self.rows] = value


def slots(shape: Architecture, only: Collection[str] | None = None) -> list[Slot]:
    """Every tensor of `shape.tensor_shapes()`, in the same order; or those that are named."""
    hidden, inner, dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
    q, kv = shape.heads * dim, shape.kv_heads * dim
    parts = {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}
    fused_transposed = hidden <= q + 2 * kv
    found = [Slot("model.embed_tokens.weight", "embedding")]
    for i in range(shape.layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        found.append(Slot(theirs + "input_layernorm.weight", ours + "attention_norm.weight"))
        for name, rows in parts.items():
            at = f"{theirs}self_attn.{name}_proj."
            found.append(Slot(at + "weight", ours + "qkv.weight", rows, fused_transposed))
            if shape.qkv_bias:
                found.append(Slot(at + "bias", ours + "qkv.bias", rows))
        if shape.qk_norm:
            for name in ("q", "k"):
                at = f"{theirs}self_attn.{name}_norm.weight"
                found.append(Slot(at, f"{ours}head_norm.{name}_weight"))
        biased = shape.mlp_bias
        found += [
            *_linear(theirs + "self_attn.o_proj", ours + "o", q, hidden, shape.attention_bias),
            Slot(theirs + "post_attention_layernorm.weight", ours + "mlp_norm.weight"),
            *_linear(theirs + "mlp.gate_proj", ours + "gate", hidden, inner, biased),
            *_linear(theirs + "mlp.up_proj", ours + "up", hidden, inner, biased),
            *_linear(theirs + "mlp.down_proj", ours + "down", inner, hidden, biased),
        ]
    found.append(Slot("model.norm.weight", "norm.weight"))
    if not shape.tied_head:
        found.append(Slot("lm_head.weight", "head"))
    return found if only is None else [slot for slot in found if slot.hf_name in only]


def _linear(theirs: str, ours: str, width_in: int, width_out: int, bias: bool) -> list[Slot]:
    transposed = width_in <= width_out
    weight = Slot(theirs + ".weight", ours + ".weight", transposed=transposed)
    return [weight, Slot(theirs + ".bias", ours + ".bias")] if bias else [weight]


def to_engine(
    shape: Architecture,
    tensors: Mapping[str, np.ndarray],
    only: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """Tensors by Hugging Face name -> values of the parameters by engine name, float32.

    All of the model's, or those that `only` names. Raises BadInput naming every tensor that is
    missing, unknown or misshapen.
    """
    tensors = _without_tied_head(shape, tensors)
    expected = shape.tensor_shapes()
    if only is not None:
        expected = {name: size for name, size in expected.items() if name in only}
    problems = [f"tensor {name} is missing" for name in expected if name not in tensors]
    problems += [f"tensor {name} is unknown" for name in tensors if name not in expected]
    found: dict[str, np.ndarray] = {}
    for parameter, group in _by_parameter(shape, only).items():
        values = [tensors[slot.hf_name] for slot in group if slot.hf_name in tensors]
        for slot, value in zip(group, values, strict=False):
            if value.shape != expected[slot.hf_name]:
                problems.append(
                    f"tensor {slot.hf_name} has shape {list(value.shape)}, "
                    f"the config says {list(expected[slot.hf_name])}"
                )
        if problems:
            continue
        rows = sum(len(value) for value in values)
        form = (rows, *values[0].shape[1:])
        stored = np.empty(form[::-1] if group[0].transposed else form, np.float32)
        for slot, value in zip(group, values, strict=True):
            slot.write(stored, value)
        found[parameter] = stored
    if problems:
        raise BadInput(*problems)
    return found


def to_hf(
    shape: Architecture,
    values: Mapping[str, np.ndarray],
    only: Collection[str] | None = None,
) -> Iterator[tuple[str, np.ndarray]]:
    """Values of the parameters by engine name -> (Hugging Face name, tensor) in their order."""
    for slot in slots(shape, only):
        yield slot.hf_name, slot.read(values[slot.parameter])


def load(model: Decoder, shape: Architecture, tensors: Mapping[str, np.ndarray]) -> None:
    """Set the base parameters of `model` from tensors by Hugging Face name. Raises BadInput."""
    held = dict(model.parameters_and_names())
    for name, value in to_engine(shape, tensors).items():
        set_parameter(held[name], value)


def read_base(model: Decoder, shape: Architecture) -> dict[str, np.ndarray]:
    """The base parameters of `model` as tensors by Hugging Face name, float32."""
    held = dict(model.parameters_and_names())
    values = {slot.parameter: held[slot.parameter].asnumpy() for slot in slots(shape)}
    return dict(to_hf(shape, values))


def adapter_slots(model: Decoder) -> dict[str, tuple[str, str]]:
    """Hugging Face module name -> engine names of its (A, B), for every pair of the model."""
    found = {}
    for engine_name, _ in model.parameters_and_names():
        if engine_name.endswith(".lora_A"):
            ours = engine_name.removesuffix(".lora_A")
            _, index, name = ours.split(".")
            found[f"model.layers.{index}.{BLOCK[name]}.{name}"] = (engine_name, ours + ".lora_B")
    return found


def load_adapter(model: Decoder, tensors: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Set the LoRA parameters from Hugging Face module name -> (A [rank, in], B [out, rank]).

    Raises BadInput naming every module that is missing, unknown or misshapen.
    """
    held = dict(model.parameters_and_names())
    expected = adapter_slots(model)
    problems = [f"adapter: module {name} is missing" for name in expected if name not in tensors]
    problems += [
        f"adapter: module {name} is none of this model" for name in tensors if name not in expected
    ]
    for module in expected.keys() & tensors.keys():
        for engine_name, value in zip(expected[module], tensors[module], strict=True):
            wanted = held[engine_name].shape
            if value.shape != wanted:
                problems.append(
                    f"adapter: {module} has shape {list(value.shape)}, this model {list(wanted)}"
                )
    if problems:
        raise BadInput(*problems)
    for module, names in expected.items():
        for engine_name, value in zip(names, tensors[module], strict=True):
            set_parameter(held[engine_name], value)


def read_adapter_tensors(model: Decoder) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Hugging Face module name -> (A [rank, in], B [out, rank]) as they are now, float32."""
    held = dict(model.parameters_and_names())
    return {
        module: (held[a].asnumpy().copy(), held[b].asnumpy().copy())
        for module, (a, b) in adapter_slots(model).items()
    }


def set_parameter(parameter: Parameter, value: np.ndarray) -> None:
    """Give a parameter a new value of the same shape."""
    if tuple(parameter.shape) != value.shape:
        raise ValueError(f"{parameter.name}: {value.shape} does not fit {parameter.shape}")
    parameter.set_data(Tensor(np.array(value, np.float32, order="C")))


def freeze(model: nn.Cell, names: set[str]) -> None:
    """Exclude the named parameters from gradients."""
    for name, parameter in model.parameters_and_names():
        if name in names:
            parameter.requires_grad = False


def _by_parameter(
    shape: Architecture, only: Collection[str] | None = None
) -> dict[str, list[Slot]]:
    groups: dict[str, list[Slot]] = {}
    for slot in slots(shape, only):
        groups.setdefault(slot.parameter, []).append(slot)
    return groups


def _without_tied_head(
    shape: Architecture, tensors: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Drop a stored copy of a tied head; refuse one that differs from the embedding."""
    if not shape.tied_head or "lm_head.weight" not in tensors:
        return tensors
    if not np.array_equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]):
        raise BadInput(
            "lm_head.weight: differs from model.embed_tokens.weight, but the config says "
            "tie_word_embeddings true; set it to false"
        )
    return {name: value for name, value in tensors.items() if name != "lm_head.weight"}
