"""Another run's checkpoint is gone on from only where its data goes on too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.corpus import CorpusWriter
from artifacts.errors import BadInput
from artifacts.manifest import read_manifest
from stages.pretrain.config import PretrainConfig
from stages.pretrain.rolling import DataPosition, Rolling, State
from stages.pretrain.run import run
from stages.spec import Job
from tests.tiny_models import VOCAB, as_artifact, write_tokenizer

MODEL = {"hidden_size": 32, "layers": 1, "heads": 4, "intermediate_size": 48}
STEP, SEQUENCES, LENGTH = 5, 4, 16
WINDOWS = 12


def write_corpus(directory: Path) -> None:
    with CorpusWriter(directory, vocab_size=VOCAB, eos_id=0, pad_id=1) as writer:
        for split in ("train", "validation"):
            writer.add(split, np.full(WINDOWS * LENGTH, 9), WINDOWS * LENGTH)
    write_tokenizer(directory)


def resume(tmp_path: Path, theirs: str | None = None, **changes: Any) -> None:
    """Go on from a checkpoint of the seed, batch and corpus of old; `theirs` is its corpus."""
    corpus = as_artifact(tmp_path, "corpus", write_corpus)
    epoch, index = divmod(STEP * SEQUENCES, WINDOWS)
    known = theirs or read_manifest(corpus).digest
    state = State(
        step=STEP,
        updates=STEP,
        skipped_in_a_row=0,
        tokens=STEP * SEQUENCES * LENGTH,
        recent_losses=[1.5],
        data=DataPosition(seed=3, epoch=epoch, index=index, corpus=known),
        rng={},
    )
    tensor = {"w": np.ones((2, 2), np.float32)}
    checkpoint = Rolling(tmp_path / "other", 1).save(state, tensor, tensor, tensor)
    config = {
        "model": MODEL,
        "batch": {"sequence_length": LENGTH, "global_size": SEQUENCES},
        "steps": 9,
        "seed": 3,
        "resume_from": str(checkpoint.directory),
    }
    work = tmp_path / "work"
    work.mkdir()
    run(Job(PretrainConfig.model_validate(config | changes), {"corpus": corpus}, work, "1" * 64))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 4}, "was drawn with seed 3; pretrain.seed is 4"),
        ({"theirs": "a" * 64}, "was trained on the corpus aaaaaaaaaaaaaaaa; this one is "),
        (
            {"batch": {"sequence_length": LENGTH, "global_size": 8}},
            "had 320 tokens in 5 steps; pretrain.batch would have had 640",
        ),
        (
            {"batch": {"sequence_length": 8, "global_size": 8}},
            r"stands at sample 8 of epoch 1; with pretrain.batch \(8 sequences of 8 tokens\) it "
            "would be at 16 of 1",
        ),
        ({"steps": 4}, "stands at step 5; pretrain.steps is 4"),
    ],
)
def test_what_would_read_other_data_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=f"^pretrain.resume_from: {says}"):
        resume(tmp_path, **changes)
    assert not list((tmp_path / "work").glob("checkpoints/step-*"))


def test_the_same_data_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stages.pretrain.run._launch", lambda *_: None)
    monkeypatch.setattr("stages.pretrain.run.read_headline", lambda _: {})
    resume(tmp_path, parallel={"data": 2})
    assert "goes on after step 5 of 9" in capsys.readouterr().out
