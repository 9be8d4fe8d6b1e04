"""Every step sees the same samples whatever the layout, and every token is used once an epoch."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from artifacts.corpus import CorpusWriter, TokenCorpus, TokenStream
from stages.pretrain.data import IGNORED, Windows, step_samples, validation_batches


@pytest.fixture
def stream(tmp_path: Path) -> TokenStream:
    """203 tokens, each its own id, in documents of 28 and a shorter last one."""
    with CorpusWriter(tmp_path, vocab_size=300, eos_id=0, pad_id=1, splits=("train",)) as writer:
        ids = np.arange(2, 205)
        for begin in range(0, 196, 28):
            writer.add("train", ids[begin : begin + 28], 28)
    return TokenCorpus(tmp_path).split("train")


def test_labels_are_the_next_tokens(stream: TokenStream) -> None:
    windows = Windows(stream, 10, seed=1)
    batch = windows.batch(range(5))
    assert batch.ids_BT.shape == (5, 10)
    for row in range(5):
        start = windows.window(row) * 10
        expected = stream.slice(start, 11)
        assert (batch.ids_BT[row] == expected[:-1]).all()
        assert (batch.labels_BT[row] == expected[1:]).all()


def test_an_epoch_takes_each_window_once_and_the_next_one_in_another_order(
    stream: TokenStream,
) -> None:
    windows = Windows(stream, 10, seed=1)
    first = [windows.window(i) for i in range(windows.count)]
    second = [windows.window(i) for i in range(windows.count, 2 * windows.count)]
    assert windows.count == (stream.tokens - 1) // 10
    assert sorted(first) == sorted(second) == list(range(windows.count))
    assert first != second
    # Going back gives the same: a resumed run starts in the middle of an epoch.
    assert Windows(stream, 10, seed=1).window(windows.count + 3) == second[3]
    assert [Windows(stream, 10, seed=2).window(i) for i in range(windows.count)] != first


@pytest.mark.parametrize(("processes", "micro_size"), [(1, 12), (1, 3), (2, 6), (3, 2), (12, 1)])
def test_a_step_has_the_same_samples_in_every_layout(processes: int, micro_size: int) -> None:
    for step in (1, 2, 7):
        parts = [
            samples
            for rank in range(processes)
            for samples in step_samples(
                step, sequences=12, micro_size=micro_size, rank=rank, processes=processes
            )
        ]
        assert {len(part) for part in parts} == {micro_size}
        assert sorted(itertools.chain(*parts)) == list(range((step - 1) * 12, step * 12))


@pytest.mark.parametrize(("processes", "micro_size"), [(1, 4), (2, 3), (3, 1)])
def test_validation_predicts_each_token_once(
    stream: TokenStream, processes: int, micro_size: int
) -> None:
    labels: list[int] = []
    shapes = set()
    for rank in range(processes):
        batches = validation_batches(
            stream,
            length=10,
            windows=1000,
            micro_size=micro_size,
            rank=rank,
            processes=processes,
        )
        shapes.add((len(batches), batches[0].ids_BT.shape))
        for batch in batches:
            counted = batch.labels_BT != IGNORED
            labels += batch.labels_BT[counted].tolist()
    assert len(shapes) == 1  # else one rank would wait for a collective that never comes
    assert sorted(labels) == sorted(stream.slice(1, stream.tokens - 1).tolist())


def test_validation_of_a_split_too_small_to_predict_anything(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path, vocab_size=9, eos_id=0, pad_id=1, splits=("validation",)):
        pass
    stream = TokenCorpus(tmp_path).split("validation")
    found = validation_batches(stream, length=4, windows=8, micro_size=2, rank=0, processes=1)
    assert found == []
