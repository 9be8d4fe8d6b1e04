"""LoRA adapters in PEFT's own files, bound to the base they were trained on.

`adapter_config.json` and `adapter_model.safetensors` are what peft reads and writes; `base.json`
beside them carries the base's digest. A setting that would change the mathematics and is not
honoured here is refused by name, never ignored.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.json_files import read_object
from artifacts.lora_spec import ALL_LINEAR, PROJECTIONS, LoraSpec, problem_with_pattern
from artifacts.lora_spec import Projection as Projection
from artifacts.manifest import Manifest
from artifacts.validation import plain, shown
from artifacts.weights import SafetensorsFile, write_safetensors

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
BASE = "base.json"
TEMPLATE = "template.json"

_KEY = re.compile(
    r"base_model\.model\.(model\.layers\.\d{1,4}\.(?:self_attn|mlp)\.(\w+))\.lora_([AB])"
)
_FLOATS = (np.dtype("<f4"), np.dtype("<f2"), np.dtype("<f8"))

# What peft may write that has no say in what the adapter computes.
_SILENT = {
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
}
_READ = {
    *("peft_type", "task_type", "r", "lora_alpha", "target_modules", "bias", "init_lora_weights"),
    *("rank_pattern", "alpha_pattern", "use_rslora", "layers_to_transform", "layers_pattern"),
    "exclude_modules",
}

Pair = tuple[np.ndarray, np.ndarray]
"""(A [rank, in], B [out, rank]), float32."""


@dataclass(frozen=True)
class Base:
    """The model an adapter belongs to."""

    digest: str
    """Content digest of the base's artifact."""
    identity: str
    """What the base's work was; tells people which model to look for."""


@dataclass(frozen=True)
class Adapter(LoraSpec):
    """A spec with the values of its pairs."""

    tensors: Mapping[str, Pair] = field(repr=False)
    """Hugging Face module name (`model.layers.0.self_attn.q_proj`) -> (A, B)."""
    base: Base | None = None
    """None for an adapter made elsewhere that says nothing of its base."""
    where: str = "adapter"
    """Its directory, for messages."""
    notes: tuple[str, ...] = ()
    """Sentences about what was left aside, for the user to read."""

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the linears it stands on in some layer, in the order of `PROJECTIONS`."""
        found = {module.rsplit(".", 1)[-1] for module in self.tensors}
        return tuple(name for name in PROJECTIONS if name in found)

    def pairs(self) -> dict[str, tuple[int, float]]:
        """Module name -> (rank, scaling) of every pair."""
        return {module: (self.rank_of(module), self.scaling_of(module)) for module in self.tensors}

    def delta(self, module: str) -> np.ndarray:
        """scaling * B @ A of one module, [out, in] float32, to be added to its weight."""
        a, b = self.tensors[module]
        return (b @ a) * np.float32(self.scaling_of(module))

    def parameter_count(self) -> int:
        """Number of trained values."""
        return sum(a.size + b.size for a, b in self.tensors.values())

    def check_base(self, manifest: Manifest) -> None:
        """Raise BadInput unless `manifest` is that of the model this adapter was trained on."""
        if self.base is None:
            raise BadInput(
                f"{self.where}: has no {BASE}, so nothing says which model it belongs to; "
                "it needs the base's digest"
            )
        if self.base.digest != manifest.digest:
            raise BadInput(
                f"{self.where}: belongs to the base with digest {self.base.digest[:16]} "
                f"(identity {self.base.identity[:16]}), this one has {manifest.digest[:16]} "
                f"(identity {manifest.identity[:16]})"
            )

    def check_fits(self, architecture: Architecture) -> None:
        """Raise BadInput naming every module that is missing, unknown or misshapen."""
        shapes = self.shapes(architecture)
        problems = [
            f"{self.where}: module {module} is targeted and has no tensors"
            for module in shapes
            if module not in self.tensors
        ]
        problems += [
            f"{self.where}: the base has no module {module}"
            for module in self.tensors
            if module not in shapes
        ]
        for module, wanted in shapes.items():
            for name, array, shape in zip("AB", self.tensors.get(module, ()), wanted, strict=False):
                if array.shape != shape:
                    problems.append(
                        f"{self.where}: {module}.lora_{name} has shape {list(array.shape)}, "
                        f"the base needs {list(shape)}"
                    )
        if problems:
            raise BadInput(*problems)


def adapter_shapes(
    architecture: Architecture, targets: Sequence[str], rank: int
) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Module name -> (shape of A, shape of B) for every targeted linear, in the model's order."""
    return LoraSpec(rank, 1.0, tuple(targets)).shapes(architecture)


def write_adapter(directory: Path, adapter: Adapter) -> None:
    """Write `adapter` as peft would, with `base.json` when its base is known. Same bytes always."""
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "target_modules": _plain(adapter.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": dict(adapter.rank_pattern),
        "alpha_pattern": dict(adapter.alpha_pattern),
        "use_rslora": adapter.rslora,
        "use_dora": False,
    }
    if adapter.layers is not None:
        config["layers_to_transform"] = list(adapter.layers)
    if adapter.excluded:
        config["exclude_modules"] = _plain(adapter.excluded)
    _write_json(directory / CONFIG, config)
    arrays = {
        f"base_model.model.{module}.lora_{letter}.weight": np.asarray(array, np.float32)
        for module, pair in adapter.tensors.items()
        for letter, array in zip("AB", pair, strict=True)
    }
    names = sorted(arrays)
    write_safetensors(
        directory / TENSORS,
        [(name, arrays[name].shape, arrays[name].dtype) for name in names],
        (arrays[name] for name in names),
        {"format": "pt"},
    )
    if adapter.base is not None:
        base = {"digest": adapter.base.digest, "identity": adapter.base.identity}
        _write_json(directory / BASE, base)


def read_adapter(directory: Path) -> Adapter:
    """Read an adapter written here or by peft.

    Raises BadInput naming every setting that is missing or not supported, every tensor with an
    unknown name, without its other half, or of another rank, and every target without tensors.
    """
    config = read_object(directory / CONFIG)
    problems = _problems_with_config(config, directory / CONFIG)
    if problems:
        raise BadInput(*problems)
    spec = _spec(config)
    tensors = _read_tensors(directory / TENSORS, spec)
    if unused := spec.unused(tensors):
        raise BadInput(*(f"{directory / TENSORS}: {each} has no tensors" for each in unused))
    return Adapter(
        **vars(spec),
        tensors=tensors,
        base=_read_base(directory / BASE),
        where=str(directory),
        notes=_notes(config, directory / CONFIG),
    )


def _spec(config: dict[str, Any]) -> LoraSpec:
    targets, layers = config["target_modules"], config.get("layers_to_transform")
    if isinstance(targets, list) and set(targets) <= set(PROJECTIONS):
        targets = [name for name in PROJECTIONS if name in targets]
    excluded = config.get("exclude_modules") or ()
    if isinstance(layers, int):
        layers = [layers]
    return LoraSpec(
        rank=config["r"],
        alpha=float(config["lora_alpha"]),
        targets=targets if isinstance(targets, str) else tuple(targets),
        rank_pattern=config.get("rank_pattern") or {},
        alpha_pattern=config.get("alpha_pattern") or {},
        rslora=bool(config.get("use_rslora")),
        layers=tuple(layers) if layers else None,
        excluded=excluded if isinstance(excluded, str) else tuple(excluded),
    )


def read_chat_template(directory: Path) -> str | None:
    """The chat template an adapter was tuned under.

    None for one tuned on no conversations, or that says nothing of it, as peft's. Raises BadInput.
    """
    path = directory / TEMPLATE
    template = read_object(path).get("chat_template") if path.is_file() else None
    if not isinstance(template, str | None):
        raise BadInput(f"{path}: chat_template is {shown(template)}; a text would be right")
    return template


def _plain(names: tuple[str, ...] | str) -> list[str] | str:
    return names if isinstance(names, str) else list(names)


def _notes(config: dict[str, Any], path: Path) -> tuple[str, ...]:
    if config.get("auto_mapping") in (None, {}):
        return ()
    return (f"{path}: auto_mapping is ignored; no module is imported because a file names it",)


def _problems_with_config(config: dict[str, Any], path: Path) -> list[str]:
    def refuse(key: str, supported: str) -> str:
        found = f"is {shown(config[key])}" if key in config else "is missing"
        return f"{path}: {plain(key)} {found}, supported is {supported}"

    problems = []
    if config.get("peft_type") != "LORA":
        problems.append(refuse("peft_type", "'LORA'"))
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        problems.append(refuse("task_type", "'CAUSAL_LM' or null"))
    rank = config.get("r")
    if type(rank) is not int or not 1 <= rank < 1 << 31:
        problems.append(refuse("r", "a whole number from 1"))
    alpha = config.get("lora_alpha", math.nan)
    # peft would take its default of 8 for a missing alpha and scale wrongly without a word.
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1e9:
        problems.append(refuse("lora_alpha", "a number above 0"))
    problems += _selection_problems(config, path, refuse)
    if config.get("bias", "none") != "none":
        problems.append(refuse("bias", "'none'"))
    # PiSSA, OLoRA and their like change the base as well.
    if config.get("init_lora_weights", True) not in (True, False, "gaussian"):
        problems.append(refuse("init_lora_weights", "true, false or 'gaussian'"))
    for key, value in config.items():
        if key not in _READ | _SILENT and value not in (None, False, {}, [], ""):
            problems.append(refuse(key, "null, false or empty"))
    return problems


def _selection_problems(
    config: dict[str, Any], path: Path, refuse: Callable[[str, str], str]
) -> list[str]:
    """What is wrong with the settings that say where pairs stand, how wide and how strong."""
    problems = []
    targets = config.get("target_modules")
    if isinstance(targets, list) and targets:
        if not all(isinstance(name, str) and _is_linear(name) for name in targets):
            problems.append(
                refuse("target_modules", f"a list of names out of {', '.join(PROJECTIONS)}")
            )
    elif targets != ALL_LINEAR and (why := problem_with_pattern(targets)):
        right = f"a list of names, or a regular expression; this is {why}"
        problems.append(refuse("target_modules", right))
    excluded = config.get("exclude_modules")
    if isinstance(excluded, list):
        if not all(isinstance(name, str) for name in excluded):
            problems.append(refuse("exclude_modules", "a list of names or a regular expression"))
    elif excluded and (why := problem_with_pattern(excluded)):
        problems.append(refuse("exclude_modules", f"a regular expression; this is {why}"))
    for key, kinds, right in (
        ("rank_pattern", (int,), "whole numbers from 1"),
        ("alpha_pattern", (int, float), "numbers above 0"),
    ):
        patterns = config.get(key) or {}
        if not isinstance(patterns, dict) or not all(
            isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < 1e9
            for value in patterns.values()
        ):
            problems.append(refuse(key, f"patterns of module names to {right}"))
            continue
        for pattern in patterns:
            if why := problem_with_pattern(pattern):
                problems.append(f"{path}: {key} has {shown(pattern)}; this is {why}")
    if not isinstance(config.get("use_rslora"), bool | None):
        problems.append(refuse("use_rslora", "true or false"))
    layers = config.get("layers_to_transform")
    listed = layers if isinstance(layers, list) else [] if layers is None else [layers]
    if not all(type(each) is int and 0 <= each < 10_000 for each in listed):
        problems.append(refuse("layers_to_transform", "numbers of layers, from 0"))
    elif listed and not isinstance(targets, list):
        problems.append(refuse("layers_to_transform", "null beside a regular expression"))
    if config.get("layers_pattern") not in (None, "", [], "layers", ["layers"]):
        problems.append(refuse("layers_pattern", "null or 'layers'"))
    return problems


def _is_linear(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in PROJECTIONS


def _read_tensors(path: Path, spec: LoraSpec) -> dict[str, Pair]:
    if not path.is_file() and path.with_suffix(".bin").is_file():
        raise BadInput(f"{path}: is missing; adapter_model.bin is a pickle and is never loaded")
    file = SafetensorsFile(path)
    problems, halves = [], dict[str, dict[str, np.ndarray]]()
    for name in file.names():
        match = _KEY.fullmatch(name.removesuffix(".weight"))
        if match is None or not name.endswith(".weight"):
            problems.append(
                f"{path}: tensor {name} has no known name, known is "
                "base_model.model.model.layers.N.(self_attn|mlp).NAME.lora_(A|B).weight"
            )
            continue
        module, leaf, letter = match.groups()
        array, axis = file.read(name), 0 if letter == "A" else 1
        if leaf not in PROJECTIONS or not spec.selects(module):
            problems.append(f"{path}: tensor {name} stands on {leaf}, no target in {CONFIG}")
        elif array.ndim != 2 or array.shape[axis] != spec.rank_of(module):
            rank = spec.rank_of(module)
            problems.append(f"{path}: {name} has shape {list(array.shape)}, r is {rank}")
        elif array.dtype not in _FLOATS and array.dtype.name != "bfloat16":
            problems.append(f"{path}: {name} holds {array.dtype}, no floating-point numbers")
        elif not np.isfinite(array := np.array(array, np.float32)).all():
            problems.append(f"{path}: {name} holds values that are not finite")
        halves.setdefault(module, {})[letter] = array
    for module, pair in halves.items():
        problems += [
            f"{path}: {module} has no lora_{letter}" for letter in "AB" if letter not in pair
        ]
    if problems:
        raise BadInput(*problems)
    return {module: (pair["A"], pair["B"]) for module, pair in sorted(halves.items())}


def _read_base(path: Path) -> Base | None:
    if not path.is_file():
        return None
    content = read_object(path)
    digest, identity = content.get("digest"), content.get("identity")
    if not isinstance(digest, str) or not isinstance(identity, str):
        raise BadInput(f"{path}: must hold the base's digest and identity as texts")
    return Base(digest, identity)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
