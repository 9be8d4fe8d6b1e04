"""A model in Hugging Face's form: config, generation config, weights and tokenizer in a directory.

Code that comes with a model (`auto_map`, `*.py`) is never run; it is mentioned and left behind.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.fields import DType
from artifacts.json_files import read_object, write_object
from artifacts.tokenizer_files import TokenizerFiles
from artifacts.validation import shown
from artifacts.weights import Weights, write_model

CONFIG, GENERATION = "config.json", "generation_config.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

NUMPY: dict[DType, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
}
TORCH_NAMES: dict[DType, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class HFModel:
    """A checkpoint or Hugging Face directory that has been read and found sound."""

    directory: Path
    architecture: Architecture
    config: dict[str, Any]
    weights: "ModelWeights"
    notes: list[str]
    """Sentences about what was left aside, for the user to read."""

    @property
    def eos_ids(self) -> list[int]:
        """End-of-sequence tokens; empty if the config names none."""
        return as_ids(self.config.get("eos_token_id"))

    @property
    def bos_id(self) -> int | None:
        """Beginning-of-sequence token."""
        return self.config.get("bos_token_id")

    @property
    def pad_id(self) -> int | None:
        """Padding token."""
        return self.config.get("pad_token_id")

    @property
    def dtype(self) -> DType:
        """The one element type of all tensors. Raises BadInput if they differ."""
        found = {self.weights.stored(name) for name in self.weights}
        names = [name for name, dtype in NUMPY.items() if dtype in found]
        if len(found) != 1 or not names:
            listed = ", ".join(sorted(str(dtype) for dtype in found))
            raise BadInput(
                f"{self.directory}: its tensors are of {listed}; "
                f"one of {', '.join(NUMPY)} for all of them would do"
            )
        return names[0]


class ModelWeights(Mapping[str, np.ndarray]):
    """A model's tensors by Hugging Face name: exactly those its architecture has, as float32."""

    def __init__(self, weights: Weights, names: list[str]):
        self._weights, self._names = weights, names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def raw(self, name: str) -> np.ndarray:
        """One tensor as it is stored."""
        return self._weights.raw(name)

    def stored(self, name: str) -> np.dtype[Any]:
        """The element type in which a tensor is stored."""
        return self._weights.raw(name).dtype


def read_model(directory: Path) -> HFModel:
    """Read a checkpoint or Hugging Face directory; tensors stay on disk until they are asked for.

    Raises BadInput naming every field it cannot honour and every tensor that is missing, unknown
    or misshapen, and when the config ties the head to the embedding but the files hold another
    head.
    """
    config = read_object(directory / CONFIG)
    notes = []
    if "auto_map" in config:
        notes.append(f"{directory / CONFIG}: auto_map is ignored; code of a model is never run")
    notes += [f"{path}: is ignored; code of a model is never run" for path in _code(directory)]
    try:
        architecture = Architecture.from_hf(config, str(directory / CONFIG))
    except BadInput as error:
        raise BadInput(*error.problems, *notes) from None
    if problems := _id_problems(config, directory / CONFIG):
        raise BadInput(*problems)
    weights = Weights(directory)
    shapes = architecture.tensor_shapes()
    names = list(shapes)
    if architecture.tied_head and HEAD in weights:
        shapes[HEAD] = shapes[EMBEDDING]
    for name in weights:
        if name.endswith("rotary_emb.inv_freq"):  # old files store what rope_theta says already
            shapes[name] = weights.shape(name)
    weights.check(shapes)
    if HEAD in shapes and architecture.tied_head and not _equal(weights, HEAD, EMBEDDING):
        raise BadInput(
            f"{directory}: {CONFIG} says tie_word_embeddings, but {HEAD} differs from {EMBEDDING}; "
            "set tie_word_embeddings to false or leave the head out"
        )
    odd = [name for name in names if weights.raw(name).dtype not in _floats()]
    if odd:
        raise BadInput(
            f"{directory}: tensor {odd[0]} is stored as {weights.raw(odd[0]).dtype}; "
            "floating point would be right"
        )
    return HFModel(directory, architecture, config, ModelWeights(weights, names), notes)


def write_configs(
    directory: Path,
    architecture: Architecture,
    *,
    dtype: DType,
    bos_id: int | None,
    eos_ids: list[int],
    pad_id: int | None,
) -> None:
    """Write `config.json` and `generation_config.json` (greedy, as the model was trained)."""
    eos: int | list[int] | None = eos_ids[0] if len(eos_ids) == 1 else (eos_ids or None)
    config = architecture.to_hf(dtype=TORCH_NAMES[dtype], bos_id=bos_id, eos_id=None, pad_id=pad_id)
    write_object(directory / CONFIG, config | {"eos_token_id": eos})
    generation = {"bos_token_id": bos_id, "eos_token_id": eos, "pad_token_id": pad_id}
    write_object(
        directory / GENERATION, {"_from_model_config": True, "do_sample": False} | generation
    )


def copy_configs(model: HFModel, directory: Path) -> None:
    """Carry a model's two config files over, without any reference to remote code."""
    for name in (CONFIG, GENERATION):
        if (model.directory / name).is_file():
            config = read_object(model.directory / name)
            config.pop("auto_map", None)
            write_object(directory / name, config)


def write_weights(
    directory: Path,
    architecture: Architecture,
    read: Callable[[str], np.ndarray],
    dtype: DType,
    max_shard_bytes: int,
    where: str = "the model",
) -> None:
    """Write every tensor of the architecture, cast to `dtype`, one at a time.

    `read(name)` gives a tensor in the architecture's shape; `where` says whose they are. Raises
    BadInput naming a tensor with a value that is not finite, or is no longer once cast.
    """

    def cast(name: str) -> np.ndarray:
        source = np.asarray(read(name))
        with np.errstate(over="ignore"):
            result = source.astype(NUMPY[dtype], copy=False)
        if not np.isfinite(source).all():
            raise BadInput(f"{where}: tensor {name} has values that are not finite numbers")
        if not np.isfinite(result).all():
            largest = float(np.max(np.abs(source)))
            raise BadInput(
                f"dtype: is '{dtype}'; tensor {name} reaches {largest:.3g}, which only bf16 and "
                "fp32 can hold"
            )
        return result

    shapes = architecture.tensor_shapes()
    write_model(directory, list(shapes.items()), cast, NUMPY[dtype], max_shard_bytes)


def tokenizer_problems(model: HFModel, tokenizer: TokenizerFiles) -> list[str]:
    """Sentences for everything in which the model's config and the tokenizer disagree."""
    eos = model.eos_ids
    ids = {
        "bos_token": model.bos_id,
        "eos_token": tokenizer.special.get("eos_token")
        if tokenizer.special.get("eos_token") in eos
        else (eos[0] if eos else None),
        "pad_token": model.pad_id,
    }
    return tokenizer.problems_with(model.architecture.vocab_size, ids)


def as_ids(value: Any) -> list[int]:
    """Token ids from a config's value: one, several or none."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _id_problems(config: dict[str, Any], path: Path) -> list[str]:
    problems = []
    for role in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = config.get(role)
        several = value if role.startswith("eos") and isinstance(value, list) else [value]
        whole = all(type(each) is int for each in several) if value is not None else True
        if not whole:
            problems.append(f"{path}: {role} is {shown(value)}; a token id or null would be right")
    return problems


def _floats() -> set[np.dtype[Any]]:
    return {*NUMPY.values(), np.dtype(np.float64)}


def _code(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.py"))


def _equal(weights: Weights, one: str, other: str) -> bool:
    return np.array_equal(weights.raw(one), weights.raw(other))
