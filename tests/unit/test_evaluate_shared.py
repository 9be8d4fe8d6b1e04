"""What rows share is found and read once, and nothing is shared that differs."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.evaluate.rows import Scorer, batches, make_rows
from stages.evaluate.shared import LEAST, Stretch, stretches
from tests.evaluation import NumpyBackend


def subject(rng: np.random.Generator, before: list[int], shots: int, count: int) -> list[Any]:
    examples = rng.integers(0, 90, shots).tolist()
    return [
        np.array([*before, *examples, *rng.integers(0, 90, rng.integers(5, 40))], np.int32)
        for _ in range(count)
    ]


def limits(rows: list[Any]) -> list[int]:
    return [len(row) - 1 for row in rows]


def test_each_subject_reads_its_examples_once() -> None:
    rng = np.random.default_rng(0)
    system = list(range(64))  # that all begin alike must not keep subjects together
    subjects = [subject(rng, system, 300 + 10 * k, 20) for k in range(5)]
    rows = [row for rows in zip(*subjects, strict=True) for row in rows]
    found = stretches(rows, limits(rows), 8)
    assert len(found) == 5
    for stretch in found:
        k = stretch.rows[0] % 5
        assert sorted(stretch.rows) == list(range(k, 100, 5))
        assert stretch.shared >= 64 + 300 + 10 * k


def test_a_question_longer_than_its_examples_stays_with_its_subject() -> None:
    rng = np.random.default_rng(1)
    rows = subject(rng, [], 100, 10)
    rows.insert(5, np.concatenate([rows[0][:100], rng.integers(0, 90, 900)]).astype(np.int32))
    (found,) = stretches(rows, limits(rows), 8)
    assert len(found.rows) == 11


def test_little_in_common_is_read_alone() -> None:
    rng = np.random.default_rng(2)
    rows = subject(rng, list(range(LEAST - 1)), 0, 10)
    assert stretches(rows, limits(rows), 8) == [Stretch(found_order(rows), 0)]
    assert stretches(rows[:1], limits(rows[:1]), 8) == [Stretch((0,), 0)]


def found_order(rows: list[Any]) -> tuple[int, ...]:
    return tuple(sorted(range(len(rows)), key=lambda i: rows[i].astype(">u4").tobytes()))


few = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.integers(0, 2), few), min_size=1, max_size=20), st.integers(1, 4))
def test_stretches_hold_every_row_once_and_share_the_truth(
    parts: list[tuple[int, list[int]]], size: int
) -> None:
    rows = [np.array([kind] * 150 * kind + rest, np.int32) for kind, rest in parts]
    found = stretches(rows, limits(rows), size)
    assert sorted(i for stretch in found for i in stretch.rows) == list(range(len(rows)))
    for stretch in found:
        assert len({rows[i][: stretch.shared].tobytes() for i in stretch.rows}) == 1
        assert all(stretch.shared < len(rows[i]) for i in stretch.rows)


def test_long_chains_of_prefixes_do_not_exhaust_the_stack() -> None:
    rows = [np.zeros(n, np.int32) for n in range(1, 1500)]
    assert sum(len(one.rows) for one in stretches(rows, limits(rows), 8)) == len(rows)


def test_remembering_changes_no_answer_and_saves_most_tokens() -> None:
    rng = np.random.default_rng(3)
    contexts = subject(rng, [], 300, 24) + subject(rng, [], 200, 24)
    answers = [np.array(ids, np.int32) for ids in ([1], [2], [3, 4], [3, 5], [6])]
    pairs = [(left, right) for left in contexts for right in answers]
    rows = make_rows([left for left, _ in pairs], [right for _, right in pairs])

    def scored(shared: bool) -> tuple[Any, int]:
        backend = NumpyBackend(100, max_positions=400)
        scorer, found = Scorer(backend), {}
        for batch in batches(rows, 8 if shared else 1):
            one = batch if shared else type(batch)(batch.rows, 0)
            for row, values in zip(batch.rows, scorer.score(one), strict=True):
                found.update(zip(row.requests, values, strict=True))
        return [found[i] for i in range(len(pairs))], sum(b * t for b, t in backend.passes)

    (remembered, few_tokens), (alone, tokens) = scored(True), scored(False)
    assert np.abs(np.array(remembered) - np.array(alone)).max() < 1e-5
    assert few_tokens < tokens / 4
