"""From the last checkpoint to the artifact: what a killed run left is not taken over."""

import json
from pathlib import Path

import numpy as np
import pytest

from artifacts.corpus import CorpusWriter, TokenCorpus
from artifacts.weights import SINGLE
from stages.pretrain.finish import (
    TRAINER_STATE,
    is_finished,
    leave_only_the_artifact,
    write_artifact,
)
from stages.pretrain.rolling import CHECKPOINTS, OPTIMIZER, DataPosition, Rolling, State
from tests.tiny_models import VOCAB, tiny, write_tokenizer

STATE = State(
    step=3,
    updates=3,
    skipped_in_a_row=0,
    tokens=24,
    recent_losses=[2.0],
    data=DataPosition(seed=0, epoch=0, index=6),
    rng={},
)
TENSOR = {"w": np.ones((2, 2), np.float32)}


def finish(work: Path) -> None:
    corpus = work.parent / "corpus"
    if not corpus.exists():
        corpus.mkdir()
        with CorpusWriter(corpus, vocab_size=VOCAB, eos_id=0, pad_id=1) as writer:
            writer.add("train", np.arange(9), 9)
            writer.add("validation", np.arange(9), 9)
        write_tokenizer(corpus)
    rolling = Rolling(work / CHECKPOINTS, 2)
    rolling.save(STATE, TENSOR, TENSOR, TENSOR)
    found = TokenCorpus(corpus)
    write_artifact(work, rolling, tiny(), found, STATE, validation_loss=1.5, steps=3)


def names(work: Path) -> set[str]:
    return {path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file()}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_what_killed_runs_left_is_not_in_the_artifact(work: Path) -> None:
    (work / "logs").mkdir()
    (work / "logs" / "metrics.csv").write_text("step\n")
    finish(work)
    leave_only_the_artifact(work)
    right = names(work)
    for name in (".config.json.77.tmp", "manifest.json", "training/half", ".ranks/rank-0.log"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("half")
    (work / TRAINER_STATE).unlink()
    finish(work)
    assert is_finished(work)
    leave_only_the_artifact(work)
    assert names(work) == right


@pytest.mark.parametrize("name", [SINGLE, f"training/{OPTIMIZER}", "training/state.json"])
def test_a_mark_whose_files_are_not_whole_is_none(work: Path, name: str) -> None:
    finish(work)
    assert is_finished(work)
    assert json.loads((work / TRAINER_STATE).read_text())["step"] == 3
    whole = (work / name).read_bytes()
    for data in (b"", whole[:-1], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
        (work / name).write_bytes(data)
        if name.endswith(".json") and len(data) == len(whole) - 1:
            continue  # only its last line's end is missing
        assert not is_finished(work)
    (work / name).unlink()
    assert not is_finished(work)
