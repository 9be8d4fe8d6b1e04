"""Weights beside the graph, written tensor by tensor: memory does not grow with the model."""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from artifacts.onnx_bundle import DATA

ALIGNMENT = 4096
"""Bytes; each tensor begins on a page, so that engines can map the file instead of reading it."""
INLINE = 1024
"""Bytes; smaller tensors stay in the graph, where shape inference can see them."""
BLOCK = 1 << 20
"""Bytes of float32 that are held at a time: they are in the processor's cache still when they are
written."""


@dataclass(frozen=True)
class Stored:
    """An initialiser, its values in blocks of rows that are made when they are written."""

    name: str
    dtype: str
    """numpy's name, little-endian."""
    shape: tuple[int, ...]
    blocks: Iterator[np.ndarray]


def row_blocks(array: np.ndarray, dtype: str) -> Iterator[np.ndarray]:
    """The array's rows as contiguous blocks of BLOCK bytes of float32."""
    rows = max(1, BLOCK // max(1, 4 * int(np.prod(array.shape[1:], dtype=np.int64))))
    transposed = not array.flags.c_contiguous
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        if transposed:
            block = block.copy("K")  # as it lies, into the cache, where it is turned faster
        with np.errstate(over="ignore"):  # whoever casts to less looks for infinities
            yield np.ascontiguousarray(block, dtype=dtype)
        if not transposed:  # every row of a transposed one needs all pages
            _release(array)
    _release(array)


def _release(array: np.ndarray) -> None:
    """Give back the pages of a mapped file; they are read again if they are needed again."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)


def write_external_data(directory: Path, stored: Iterable[Stored]) -> list[onnx.TensorProto]:
    """Write `model.onnx_data` and return the initialisers that point into it."""
    tensors = []
    with (directory / DATA).open("wb") as file:
        for each in stored:
            size = int(np.prod(each.shape, dtype=np.int64)) * np.dtype(each.dtype).itemsize
            if size < INLINE:
                value = np.concatenate(list(each.blocks)).reshape(each.shape)
                tensors.append(numpy_helper.from_array(value, each.name))
                continue
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            tensors.append(_pointer(each, file.tell(), size))
            for block in each.blocks:
                file.write(block.data)
    return tensors


def _pointer(stored: Stored, offset: int, length: int) -> onnx.TensorProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(stored.dtype))
    tensor = TensorProto(name=stored.name, data_type=kind, dims=stored.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", DATA), ("offset", offset), ("length", length)):
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=str(value)))
    return tensor
