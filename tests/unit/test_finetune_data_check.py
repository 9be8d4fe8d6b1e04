"""The account of the data: counts by hand, and the table that people read."""

import numpy as np

from stages.finetune.data_check import data_check, data_table
from stages.finetune.dataset import NO_LOSS, Dataset, Encoded


def encoded(length: int, learned: int) -> Encoded:
    ids = np.arange(length, dtype=np.int32)
    labels = np.full(length, NO_LOSS, np.int32)
    labels[length - learned :] = ids[length - learned :]
    return Encoded(ids, labels)


def test_counts_by_hand() -> None:
    dataset = Dataset(
        [encoded(10, 2), encoded(30, 6)],
        read=9,
        dropped={"empty answer": [f"/data/set/f.jsonl:{n}" for n in range(1, 8)]},
        duplicates=["/data/set/f.jsonl:9"],
    )
    check = data_check(dataset, max_length=32)
    assert (check["read"], check["kept"]) == (9, 2)
    assert check["dropped"]["empty answer"]["count"] == 7
    assert check["dropped"]["empty answer"]["first"] == [f"f.jsonl:{n}" for n in range(1, 6)]
    assert (check["tokens"], check["tokens_with_loss"]) == (40, 8)
    assert check["share_with_loss"] == 0.2
    assert check["length"] == {
        "shortest": 10,
        "median": 20.0,
        "95th percentile": 29.0,
        "longest": 30,
    }
    table = data_table(check)
    assert "| dropped: empty answer | 7 | f.jsonl:1, f.jsonl:2" in table
    assert "| of them: duplicate of an earlier example | 1 | f.jsonl:9 |" in table
    assert "| tokens with loss | 8 | 20.0% |" in table
    assert "/data/set" not in table


def test_nothing_kept_still_makes_a_table() -> None:
    check = data_check(Dataset(read=1, dropped={"empty answer": ["f:1"]}), max_length=32)
    assert check["share_with_loss"] == 0.0
    assert "| examples kept | 0 |" in data_table(check)
