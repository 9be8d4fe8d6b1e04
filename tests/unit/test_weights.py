"""safetensors: what we write others read, what is broken is named."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from artifacts.errors import BadInput
from artifacts.weights import INDEX, SINGLE, SafetensorsFile, Weights, write_model

RNG = np.random.default_rng(0)
TENSORS = {
    "a": RNG.normal(size=(3, 5)).astype(np.float32),
    "b": RNG.normal(size=(7,)).astype(np.float32),
    "c": np.zeros((0, 4), np.float32),
}
SHAPES = {name: array.shape for name, array in TENSORS.items()}


def write(directory: Path, dtype: str = "float32", max_shard_bytes: int = 1 << 30) -> None:
    write_model(directory, SHAPES.items(), TENSORS.__getitem__, np.dtype(dtype), max_shard_bytes)


def test_the_stock_reader_reads_what_we_write(tmp_path: Path) -> None:
    write(tmp_path)
    for name, array in load_file(tmp_path / SINGLE).items():
        np.testing.assert_array_equal(array, TENSORS[name])


def test_we_read_what_the_stock_writer_writes(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / SINGLE)
    weights = Weights(tmp_path)
    weights.check(SHAPES)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(weights[name], array)


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("limit", [1, 40, 1 << 30])
def test_a_round_trip_keeps_every_byte(tmp_path: Path, dtype, limit: int) -> None:
    write(tmp_path, dtype, limit)
    assert (tmp_path / INDEX).exists() == (limit < 1 << 30)
    weights = Weights(tmp_path)
    assert list(weights) == list(TENSORS)
    for name, array in TENSORS.items():
        assert weights.raw(name).tobytes() == array.astype(dtype).tobytes()


@pytest.mark.parametrize("cut", [0, 7, 8, 30, -1])
def test_a_cut_file_is_named(tmp_path: Path, cut: int) -> None:
    write(tmp_path)
    data = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(data[:cut])
    with pytest.raises(BadInput, match=SINGLE):
        Weights(tmp_path)


def test_wrong_tensors_are_all_named(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(BadInput) as caught:
        Weights(tmp_path).check({"a": (3, 5), "b": (8,), "d": (1,)})
    assert len(caught.value.problems) == 3
    text = str(caught.value)
    assert "d is missing" in text
    assert "c is unknown" in text
    assert "b has shape [7], the config says [8]" in text


@pytest.mark.parametrize("shard", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", 3])
def test_an_index_may_not_point_outside(tmp_path: Path, shard: object) -> None:
    write(tmp_path, max_shard_bytes=1)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"] = {"a": shard}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(BadInput, match=INDEX):
        Weights(tmp_path)


def test_a_missing_shard_and_a_lying_index_are_named(tmp_path: Path) -> None:
    write(tmp_path, max_shard_bytes=1)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["a"], index["weight_map"]["b"] = (
        index["weight_map"]["b"],
        index["weight_map"]["a"],
    )
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(BadInput, match="does not hold tensor"):
        Weights(tmp_path)
    write(tmp_path, max_shard_bytes=1)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BadInput, match=r"model-00002-of-00003\.safetensors: is missing"):
        Weights(tmp_path)


def test_a_pickle_is_not_loaded_but_mentioned(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(BadInput, match="pickle and is never loaded"):
        Weights(tmp_path)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_crash(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / SINGLE
    path.write_bytes(data)
    try:
        SafetensorsFile(path)
    except BadInput as error:
        assert str(path) in str(error)  # noqa: PT017


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 1 << 40) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), JSON, max_size=3))
def test_no_header_makes_the_reader_crash(tmp_path_factory, header: dict) -> None:
    path = tmp_path_factory.mktemp("any") / SINGLE
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 16)
    try:
        file = SafetensorsFile(path)
        for name in file.names():
            file.read(name)
    except BadInput as error:
        assert str(path) in str(error)  # noqa: PT017


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4)))
def test_any_array_comes_back(tmp_path_factory, array: np.ndarray) -> None:
    directory = tmp_path_factory.mktemp("any")
    write_model(directory, [("x", array.shape)], lambda _: array, np.dtype("float32"), 1 << 20)
    assert Weights(directory).raw("x").tobytes() == array.tobytes()
