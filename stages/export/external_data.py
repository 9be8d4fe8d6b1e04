"""Weights beside the graph, written tensor by tensor: memory does not grow with the model."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from artifacts.hf_model import ModelWeights
from artifacts.onnx_bundle import DATA

ALIGNMENT = 4096
"""Bytes; each tensor begins on a page, so that engines can map the file instead of reading it."""
INLINE = 1024
"""Bytes; smaller tensors stay in the graph, where shape inference can see them."""
BLOCK = 16 << 20
"""Bytes of float32 that are held at a time."""


def write_external_data(
    directory: Path, weights: ModelWeights, stored: Mapping[str, tuple[str, bool]]
) -> list[onnx.TensorProto]:
    """Write `model.onnx_data` in float32 and return the initialisers that point into it.

    `stored` maps an initialiser's name to its tensor and whether that is stored transposed.
    """
    tensors = []
    with (directory / DATA).open("wb") as file:
        for name, (source, flip) in stored.items():
            array = weights.raw(source)
            shape = array.shape[::-1] if flip else array.shape
            size = array.size * 4
            if size < INLINE:
                value = np.asarray(array.T if flip else array, dtype=np.float32)
                tensors.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
                continue
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            tensors.append(_pointer(name, shape, file.tell(), size))
            for block in _blocks(array.T if flip else array):
                file.write(block.data)
    return tensors


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array's rows as contiguous little-endian float32 blocks of bounded size."""
    rows = max(1, BLOCK // max(1, 4 * int(np.prod(array.shape[1:], dtype=np.int64))))
    starts = range(0, len(array), rows)
    return (np.ascontiguousarray(array[start : start + rows], dtype="<f4") for start in starts)


def _pointer(name: str, shape: tuple[int, ...], offset: int, length: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", DATA), ("offset", offset), ("length", length)):
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=str(value)))
    return tensor
