"""From the last rolling checkpoint to the artifact: a model directory that can be continued."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

from artifacts.architecture import Architecture
from artifacts.corpus import TokenCorpus
from artifacts.tokenizer_files import CONFIG, OPTIONAL, SPECIAL, TOKENIZER
from artifacts.weights import SINGLE
from artifacts.writing import sync_tree, write_file_atomically
from stages.pretrain.rolling import (
    CHECKPOINTS,
    OPTIMIZER,
    STATE,
    Rolling,
    State,
    whole_files,
    write_state,
)

TOKENIZER_FILES = (TOKENIZER, CONFIG, SPECIAL, *OPTIONAL)
TRAINER_STATE = "trainer_state.json"
RANKS = ".ranks"
"""The processes' logs of a parallel run, while it goes on."""
GOES_ON = (CHECKPOINTS, RANKS, "logs")
"""What of `work` is not the artifact's result, or is written all along."""


def write_artifact(
    work: Path,
    rolling: Rolling,
    shape: Architecture,
    corpus: TokenCorpus,
    state: State,
    *,
    validation_loss: float | None,
    steps: int,
    tokenizer: Path | None = None,
) -> None:
    """Leave in `work` what a finished checkpoint holds, and nothing else.

    The tokenizer's files are the corpus's, unless they lie with the model that was started from.
    """
    tokenizer = tokenizer or corpus.directory
    last, _ = rolling.latest()
    assert last is not None
    assert last.state.step == state.step == steps
    _clear(work)
    config = shape.to_hf(
        dtype="float32", bos_id=corpus.bos_id, eos_id=corpus.eos_id, pad_id=corpus.pad_id
    )
    _write_json(work / "config.json", config)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, work / name)
    shutil.copyfile(last.directory / SINGLE, work / SINGLE)
    # The weights are model.safetensors above; what only training needs stands apart.
    training = work / "training"
    training.mkdir(exist_ok=True)
    shutil.copyfile(last.directory / OPTIMIZER, training / OPTIMIZER)
    data = last.state.data.model_copy(update={"corpus": None})
    write_state(training / STATE, last.state.model_copy(update={"data": data}))
    figures = headline(shape, corpus, state, validation_loss)
    # Last, as the mark that all of the above is there: see `is_finished`. Synced before it, or a
    # power cut could leave the mark and half of what it stands for.
    sync_tree(work)
    _write_json(work / TRAINER_STATE, {"format": 1, "step": state.step, "headline": figures})


def is_finished(work: Path) -> bool:
    """Whether `write_artifact` has come to its end, in this process or in one killed since."""
    training = work / "training"
    return (work / TRAINER_STATE).is_file() and whole_files(
        training / STATE, {SINGLE: work / SINGLE, OPTIMIZER: training / OPTIMIZER}
    )


def leave_only_the_artifact(work: Path) -> None:
    """Remove what only the run needed, also that of a run killed since it was finished."""
    for name in (CHECKPOINTS, RANKS):
        if (work / name).exists():
            shutil.rmtree(work / name)


def _clear(work: Path) -> None:
    """Remove what a killed run had begun to write, under whatever temporary name."""
    for path in work.iterdir():
        if path.is_dir() and path.name not in GOES_ON:
            shutil.rmtree(path)
        elif not path.is_dir():
            path.unlink()


def headline(
    shape: Architecture, corpus: TokenCorpus, state: State, validation_loss: float | None
) -> dict[str, Any]:
    """The figures people look at first. Losses in nats per token.

    `bits_per_byte` is the validation windows' loss at the whole split's tokens a byte: an estimate,
    since what the windows alone take in bytes is not recorded.
    """
    losses = state.recent_losses
    figures: dict[str, Any] = {
        "train_loss": round(math.fsum(losses) / len(losses), 6) if losses else None,
        "validation_loss": None if validation_loss is None else round(validation_loss, 6),
        "bits_per_byte": None,
        "tokens": state.tokens,
        "steps": state.step,
        "skipped_steps": state.step - state.updates,
        "parameters": shape.parameter_count(),
    }
    held_out = corpus.split("validation")
    if validation_loss is not None and held_out.bytes:
        bits = validation_loss / math.log(2) * held_out.tokens / held_out.bytes
        figures["bits_per_byte"] = round(bits, 6)
    return figures


def read_headline(work: Path) -> dict[str, Any]:
    """The figures that `write_artifact` left."""
    found: dict[str, Any] = json.loads((work / TRAINER_STATE).read_text(encoding="utf-8"))
    return found["headline"]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_file_atomically(path, (text + "\n").encode())
