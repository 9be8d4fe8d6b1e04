"""The corpus on disk: what is written is what is read, and damage is noticed."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.corpus import CorpusWriter, TokenCorpus
from artifacts.errors import BadInput

EOS, PAD = 0, 1


def write(
    directory: Path,
    documents: list[list[int]],
    *,
    shard_tokens: int = 7,
    vocab_size: int = 100,
    validation: list[list[int]] | None = None,
) -> TokenCorpus:
    directory.mkdir(parents=True, exist_ok=True)
    with CorpusWriter(
        directory, vocab_size=vocab_size, eos_id=EOS, pad_id=PAD, shard_tokens=shard_tokens
    ) as writer:
        for ids in documents:
            writer.add("train", ids, len(ids))
        for ids in validation or [[5]]:
            writer.add("validation", ids, 1)
    return TokenCorpus(directory)


documents_of_ids = st.lists(st.lists(st.integers(2, 99), max_size=12), min_size=1, max_size=15)


@settings(max_examples=60, deadline=None)
@given(documents=documents_of_ids, shard_tokens=st.integers(1, 40), data=st.data())
def test_any_slice_is_the_joined_documents_whatever_the_shards(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    shard_tokens: int,
    data: st.DataObject,
) -> None:
    corpus = write(tmp_path_factory.mktemp("c"), documents, shard_tokens=shard_tokens)
    stream = corpus.split("train")
    joined = [token for ids in documents for token in [*ids, EOS]]
    assert stream.tokens == len(joined)
    start = data.draw(st.integers(0, len(joined)))
    length = data.draw(st.integers(0, len(joined) - start))
    piece = stream.slice(start, length)
    assert piece.dtype == np.int32
    assert piece.tolist() == joined[start : start + length]
    starts, base = [], 0
    for path in (corpus.directory / name for name in corpus.info.splits["train"].shards):
        starts += (base + np.fromfile(path.with_suffix(".docs"), "<i8")).tolist()
        base += len(np.fromfile(path, "<u2"))
    assert len(starts) == stream.documents == len(documents)
    ends = [*starts[1:], stream.tokens]
    for ids, begin, end in zip(documents, starts, ends, strict=True):
        assert joined[begin:end] == [*ids, EOS]


def test_every_slice_of_three_shards(tmp_path: Path) -> None:
    documents = [[2, 3, 4], [5, 6], [7] * 10, [8]]
    stream = write(tmp_path, documents, shard_tokens=7).split("train")
    joined = [token for ids in documents for token in [*ids, EOS]]
    for start in range(len(joined) + 1):
        for length in range(len(joined) + 1 - start):
            assert stream.slice(start, length).tolist() == joined[start : start + length]


def test_shards_divide_between_documents_and_open_in_numpy(tmp_path: Path) -> None:
    write(tmp_path, [[2, 3, 4], [5, 6], [7] * 10, [8]], shard_tokens=7)
    shards = json.loads((tmp_path / "corpus.json").read_text())["splits"]["train"]["shards"]
    assert [np.fromfile(tmp_path / name, "<u2").tolist() for name in shards] == [
        [2, 3, 4, 0, 5, 6, 0],
        [*[7] * 10, 0],  # larger than a shard: it gets one of its own
        [8, 0],
    ]
    assert np.fromfile(tmp_path / "train-00000.docs", "<i8").tolist() == [0, 4]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_the_highest_id_survives(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    corpus = write(tmp_path, [[vocab_size - 1]], vocab_size=vocab_size)
    assert corpus.split("train").slice(0, 1).tolist() == [vocab_size - 1]
    assert np.fromfile(tmp_path / "train-00000.bin", dtype).tolist() == [vocab_size - 1, EOS]


@pytest.mark.parametrize("ids", [[100], [-1]])
def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.99"):
        write(tmp_path, [ids])


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 9), (8, 1), (3, -1)])
def test_a_slice_that_leaves_the_split_is_an_error(tmp_path: Path, start: int, length: int) -> None:
    stream = write(tmp_path, [[2, 3, 4], [5, 6, 7]]).split("train")
    assert stream.tokens == 8
    with pytest.raises(IndexError):
        stream.slice(start, length)


def damage_missing(directory: Path) -> None:
    (directory / "train-00001.bin").unlink()


def damage_cut(directory: Path) -> None:
    path = directory / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])


def damage_half_a_token(directory: Path) -> None:
    path = directory / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-1])


def damage_offsets(directory: Path) -> None:
    np.array([0, 99], "<i8").tofile(directory / "train-00000.docs")


def damage_boundary(directory: Path) -> None:
    np.array([0, 2], "<i8").tofile(directory / "train-00000.docs")


def damage_totals(directory: Path) -> None:
    info = json.loads((directory / "corpus.json").read_text())
    info["splits"]["train"]["documents"] += 1
    (directory / "corpus.json").write_text(json.dumps(info))


def damage_name(directory: Path) -> None:
    info = json.loads((directory / "corpus.json").read_text())
    info["splits"]["train"]["shards"][0] = "../train-00000.bin"
    (directory / "corpus.json").write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_missing, r"train-00001\.bin: cannot be read"),
        (damage_cut, "does not end in token 0"),
        (damage_half_a_token, "no whole number of uint16"),
        (damage_offsets, "do not divide"),
        (damage_boundary, "does not end in token 0"),
        (damage_totals, r"corpus\.json says 12 in 5"),
        (damage_name, "is no .bin file beside it"),
    ],
)
def test_a_damaged_corpus_is_refused_by_name(tmp_path: Path, damage: object, says: str) -> None:
    write(tmp_path, [[2, 3], [4, 5], [6, 7], [8, 9]])
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(BadInput, match=says):
        TokenCorpus(tmp_path).split("train")


def test_a_split_or_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"corpus\.json: cannot be read"):
        TokenCorpus(tmp_path)
    corpus = write(tmp_path, [[2]])
    with pytest.raises(BadInput, match="no split 'test', only train, validation"):
        corpus.split("test")
    (tmp_path / "corpus.json").write_text('{"format": 2}')
    with pytest.raises(BadInput, match=r"corpus\.json: format"):
        TokenCorpus(tmp_path)
