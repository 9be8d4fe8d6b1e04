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
from artifacts.weights import Weights, pieces, plain_cast, write_model

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
        return self._weights.dtype(name)

    def files(self) -> list[Path]:
        """The weight files."""
        return self._weights.files()


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
    if config.get("attention_dropout"):
        dropout = shown(config["attention_dropout"])
        notes.append(
            f"{directory / CONFIG}: attention_dropout is {dropout}; training here has none"
        )
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
    odd = [name for name in names if weights.dtype(name) not in _floats()]
    if odd:
        raise BadInput(
            f"{directory}: tensor {odd[0]} is stored as {weights.dtype(odd[0])}; "
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


def generation_config(model: HFModel) -> dict[str, Any] | None:
    """What the model says of its generation, if it says anything beside what we write ourselves."""
    path = model.directory / GENERATION
    if not path.is_file():
        return None
    found = read_object(path)
    return {key: value for key, value in found.items() if key != "auto_map"}


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
    dtype: DType | Mapping[str, np.dtype[Any]],
    max_shard_bytes: int,
    where: str = "the model",
) -> None:
    """Write every tensor of the architecture, cast to `dtype` (one for all, or one by name).

    `read(name)` gives a tensor in the architecture's shape, of any float type, mapped or in memory;
    `where` says whose they are. Raises BadInput naming a tensor with a value that is not finite, or
    is no longer once cast.
    """

    def cast(name: str, piece: np.ndarray, wanted: np.dtype[Any]) -> np.ndarray:
        with np.errstate(over="ignore"):
            result = plain_cast(name, piece, wanted)
        if all_finite(result):
            return result
        if not np.isfinite(piece.astype(np.float32)).all():
            raise BadInput(f"{where}: tensor {name} has values that are not finite numbers")
        largest = float(np.max(np.abs(piece.astype(np.float32))))
        raise BadInput(
            f"dtype: is '{dtype}'; tensor {name} reaches {largest:.3g}, which only bf16 and "
            "fp32 can hold"
        )

    shapes = architecture.tensor_shapes()
    kinds = dtype if isinstance(dtype, Mapping) else NUMPY[dtype]
    write_model(directory, list(shapes.items()), read, kinds, max_shard_bytes, cast)


def all_finite(piece: np.ndarray) -> bool:
    """Whether no value is infinite or NaN."""
    exponent = {NUMPY["bf16"]: 0x7F80, NUMPY["fp16"]: 0x7C00}.get(piece.dtype)
    if exponent is None:
        return bool(np.isfinite(piece).all())
    # On the bits: five times as fast as numpy's own test of half-precision numbers.
    return not ((piece.view(np.uint16) & np.uint16(exponent)) == exponent).any()


def differing(one: np.ndarray, other: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether `one`, cast to `dtype`, has other bits than `other`; read piece by piece."""
    if other.dtype != dtype or one.shape != other.shape:
        return True
    return any(
        not np.array_equal(plain_cast("", left, dtype).view(np.uint8), right.view(np.uint8))
        for left, right in zip(pieces(one), pieces(other), strict=True)
    )


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
    left, right = weights.raw(one), weights.raw(other)
    return not differing(left, right, right.dtype)
