"""Model weights in safetensors, one file or shards with an index, handled tensor by tensor."""

import fcntl
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from artifacts.errors import BadInput
from artifacts.json_files import parse_json, read_object
from artifacts.paths import is_name
from artifacts.validation import shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
MAX_HEADER = 100_000_000
"""Bytes; the limit that the safetensors format itself sets."""


PIECE = 1 << 19
"""Numbers handled at once: small enough for the processor's cache, large enough for the disk."""

Cast = Callable[[str, np.ndarray, np.dtype[Any]], np.ndarray]
"""(name of the tensor, a flat piece of it, wanted type) -> the piece in that type."""


def plain_cast(name: str, piece: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """By way of float32, in which all arithmetic is; unchanged if it is of the type already."""
    if piece.dtype == dtype:
        return piece
    return piece.astype(np.float32, copy=False).astype(dtype, copy=False)


class SafetensorsFile:
    """One safetensors file: its header parsed and checked, its tensors mapped and read on demand.

    The stock reader has no numpy bfloat16, hence this one.
    Format: https://huggingface.co/docs/safetensors (8 bytes little-endian header size, JSON, data).
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if size < 8 or length > min(size - 8, MAX_HEADER):
                    raise BadInput(f"{path}: is cut short or no safetensors file")
                header = parse_json(file.read(length), f"{path}: its safetensors header")
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
        if not isinstance(header, dict):
            raise BadInput(f"{path}: its safetensors header is no object")
        metadata = header.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict):
            raise BadInput(f"{path}: __metadata__ in its safetensors header is no object")
        self.metadata: dict[str, str] = metadata
        self._begin = 8 + length
        self._entries: dict[str, tuple[np.dtype[Any], tuple[int, ...], int]] = {}
        for name, entry in header.items():
            self._entries[name] = self._checked(name, entry, size - self._begin)

    def _checked(self, name: str, entry: Any, room: int) -> tuple[Any, tuple[int, ...], int]:
        try:
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = (operator.index(offset) for offset in entry["data_offsets"])
            count = 1
            for length in shape:
                if type(length) is not int or length < 0:
                    raise ValueError
                count *= length
            if not (0 <= begin <= end) or end - begin != count * dtype.itemsize:
                raise ValueError
            if len(shape) > 32 or 0 in shape:
                np.empty(shape)  # numpy has limits of its own
        except (KeyError, TypeError, ValueError):
            raise BadInput(f"{self.path}: tensor {name} has a broken header entry") from None
        if end > room:
            raise BadInput(f"{self.path}: is cut short, tensor {name} reaches byte {end} of {room}")
        return dtype, shape, begin

    def names(self) -> list[str]:
        """Names of the tensors, in the header's order."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, without reading it."""
        return self._entries[name][1]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Element type of one tensor, without reading it."""
        return self._entries[name][0]

    def read(self, name: str) -> np.ndarray:
        """One tensor as stored; read-only pages of the file, not a copy."""
        dtype, shape, begin = self._entries[name]
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, "r", self._begin + begin, shape)

    def fill(self, name: str, index: tuple[slice, ...], value: np.ndarray) -> None:
        """Write a part of one tensor in place. Several processes may fill one file.

        On several machines too: parts share pages, which network file systems write whole, so one
        process writes at a time, under a lock that has the file's pages fetched and sent anew.
        """
        dtype, shape, begin = self._entries[name]
        with self.path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            held = np.memmap(file, dtype, "r+", self._begin + begin, shape)
            held[index] = value
            held.flush()


class Weights(Mapping[str, np.ndarray]):
    """All tensors of a directory by name, whatever file each is in; read on access as float32."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._home = _locate(directory)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self.raw(name), dtype=np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)

    def raw(self, name: str) -> np.ndarray:
        """One tensor in its stored dtype."""
        return self._home[name].read(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, without reading it."""
        return self._home[name].shape(name)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Element type of one tensor, without reading it."""
        return self._home[name].dtype(name)

    def files(self) -> list[Path]:
        """The weight files."""
        return sorted({file.path for file in self._home.values()})

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Raise BadInput naming every tensor that is missing, extra or misshapen."""
        problems = [
            f"{self.directory}: tensor {name} is missing"
            for name in expected
            if name not in self._home
        ]
        problems += [
            f"{self.directory}: tensor {name} is unknown to this architecture"
            for name in self._home
            if name not in expected
        ]
        problems += [
            f"{self.directory}: tensor {name} has shape {list(self.shape(name))}, "
            f"the config says {list(shape)}"
            for name, shape in expected.items()
            if name in self._home and self.shape(name) != tuple(shape)
        ]
        if problems:
            raise BadInput(*problems)


def _locate(directory: Path) -> dict[str, SafetensorsFile]:
    index_path = directory / INDEX
    if not index_path.is_file():
        if not (directory / SINGLE).is_file():
            others = [
                path.name
                for suffix in ("*.bin", "*.pt", "*.pth", "*.ckpt")
                for path in directory.glob(suffix)
            ]
            hint = f"; {others[0]} is a pickle and is never loaded" if others else ""
            raise BadInput(f"{directory}: holds no {SINGLE} and no {INDEX}{hint}")
        file = SafetensorsFile(directory / SINGLE)
        return dict.fromkeys(file.names(), file)
    weight_map = read_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadInput(f"{index_path}: is no index with a weight_map")
    for shard in weight_map.values():
        if not is_name(shard):
            raise BadInput(f"{index_path}: shard {shown(shard)} lies outside the directory")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if not (directory / shard).is_file():
            raise BadInput(f"{directory / shard}: is missing, {INDEX} names it")
    files = {shard: SafetensorsFile(directory / shard) for shard in shards}
    held = {name: shard for shard, file in files.items() for name in file.names()}
    for name, shard in weight_map.items():
        if held.get(name) != shard:
            raise BadInput(f"{directory / shard}: does not hold tensor {name}, {INDEX} says so")
    if extra := held.keys() - weight_map.keys():
        raise BadInput(f"{index_path}: does not list tensor {sorted(extra)[0]}")
    return {name: files[shard] for name, shard in held.items()}


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """A contiguous array in flat pieces of at most PIECE numbers, as views."""
    flat = np.ascontiguousarray(array).reshape(-1)
    for begin in range(0, flat.size, PIECE):
        yield flat[begin : begin + PIECE]


def write_safetensors(
    path: Path,
    tensors: Iterable[tuple[str, tuple[int, ...], np.dtype[Any]]],
    data: Iterable[np.ndarray],
    metadata: Mapping[str, str],
    cast: Cast | None = None,
) -> None:
    """Write one safetensors file: the header from `tensors`, then `data` in the same order.

    Only one tensor is held in memory at a time, or a piece of it where `data` gives mapped files.
    `cast(name, piece, dtype)` makes the pieces what they are announced as. Raises ValueError if a
    tensor is not as announced.
    """
    tensors = list(tensors)
    text, _ = _header(tensors, metadata)
    with path.open("wb") as file:
        file.write(text)
        for (name, shape, dtype), array in zip(tensors, data, strict=True):
            if array.shape != tuple(shape) or (cast is None and array.dtype != dtype):
                raise ValueError(f"{name}: {array.dtype}{array.shape} is not {dtype}{shape}")
            for piece in pieces(array):
                piece = piece if cast is None else cast(name, piece, dtype)
                file.write(piece.view(np.uint8).data)


def lay_out_safetensors(
    path: Path,
    tensors: Iterable[tuple[str, tuple[int, ...], np.dtype[Any]]],
    metadata: Mapping[str, str],
) -> None:
    """The same file with its room taken and its tensors still 0, for `SafetensorsFile.fill`.

    Raises OSError if the disk has not the room, rather than when it is written to.
    """
    text, size = _header(list(tensors), metadata)
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        if size:
            os.posix_fallocate(file.fileno(), len(text), size)


def _header(
    tensors: list[tuple[str, tuple[int, ...], np.dtype[Any]]], metadata: Mapping[str, str]
) -> tuple[bytes, int]:
    """What stands before the data, and the data's size in bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, shape, dtype in tensors:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        header[name] = {
            "dtype": CODES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text, offset


def write_model(
    directory: Path,
    tensors: Iterable[tuple[str, tuple[int, ...]]],
    read: Callable[[str], np.ndarray],
    dtype: np.dtype[Any] | Mapping[str, np.dtype[Any]],
    max_shard_bytes: int,
    cast: Cast = plain_cast,
) -> None:
    """Write a model's tensors as `model.safetensors`, or as shards with an index if larger.

    `read(name)` gives one tensor; it is cast to `dtype`, one for all or one by name. A shard
    exceeds `max_shard_bytes` only if one tensor does. Shard names follow Hugging Face
    (`model-00001-of-00003.safetensors`).
    """
    shards: list[list[tuple[str, tuple[int, ...], np.dtype[Any]]]] = [[]]
    filled, total = 0, 0
    for name, shape in tensors:
        kind = dtype[name] if isinstance(dtype, Mapping) else dtype
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append((name, tuple(shape), kind))
        filled, total = filled + size, total + size
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    )
    for file_name, entries in zip(names, shards, strict=True):
        write_safetensors(
            directory / file_name,
            entries,
            (read(entry[0]) for entry in entries),
            {"format": "pt"},
            cast,
        )
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": total},
            "weight_map": {
                entry[0]: file_name
                for file_name, entries in zip(names, shards, strict=True)
                for entry in entries
            },
        }
        (directory / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
