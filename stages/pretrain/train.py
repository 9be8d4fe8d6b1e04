"""The training loop of one process, alone or as one rank of several.

Graph, data order and checkpoints do not depend on the number of ranks. Rank 0 alone writes.
"""

# First: it sets what MindSpore reads when it is imported.
from stages.engine import runtime  # isort: skip

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.architecture import Architecture
from artifacts.corpus import TokenCorpus
from artifacts.errors import StageFailed
from artifacts.hf_model import HFModel, read_model
from stages.engine import weights
from stages.engine.initial import initial_tensors
from stages.engine.model import Decoder
from stages.engine.parallel import Group
from stages.engine.settings import learning_rate
from stages.engine.stopping import StopRequest, dying_at_once, watching
from stages.engine.training import Batch, StepResult, Trainer
from stages.pretrain.config import PretrainConfig
from stages.pretrain.data import Windows, step_samples, validation_batches
from stages.pretrain.finish import write_artifact
from stages.pretrain.record import Recorder, Row
from stages.pretrain.rolling import CHECKPOINTS, Checkpoint, DataPosition, Rolling, State
from stages.progress import Progress

RECENT = 20
"""Steps whose mean is the final training loss."""


def train(
    config: PretrainConfig,
    corpus_directory: Path,
    work: Path,
    resume_from: Checkpoint | None,
    group: Group,
    initial: Path | None = None,
) -> None:
    """Train to the last step and leave the artifact in `work`.

    `initial` is the model directory to start from, if the config says so.
    """
    runtime.start(config.device, config.seed)
    corpus = TokenCorpus(corpus_directory)
    start = None if initial is None else read_model(initial)
    run = Run(config, corpus, work, resume_from, group, start)
    if group.rank > 0:  # signals are rank 0's business; the others end when it has written
        run.to_the_end(StopRequest(), contextlib.nullcontext)
        return
    with watching() as stop:
        run.to_the_end(stop, dying_at_once)
        run.finish()


class Run:
    """The state of one training run."""

    def __init__(
        self,
        config: PretrainConfig,
        corpus: TokenCorpus,
        work: Path,
        resume_from: Checkpoint | None,
        group: Group,
        initial: HFModel | None = None,
    ):
        self.config, self.corpus, self.work, self.group = config, corpus, work, group
        self.initial = initial
        self.shape = _shape(config, corpus, initial)
        self.windows = Windows(corpus.split("train"), config.batch.sequence_length, config.seed)
        self.held_out = validation_batches(
            corpus.split("validation"),
            length=config.batch.sequence_length,
            windows=config.validation.batches * config.batch.sequences(),
            micro_size=config.micro_size,
            rank=group.rank,
            processes=group.size,
        )
        self.decoder, self.trainer = _make_trainer(config, self.shape, resume_from, group, initial)
        self.state = resume_from.state if resume_from else _start(config)
        self.rolling = Rolling(work / CHECKPOINTS, config.checkpoint.keep)
        self.writes = group.rank == 0
        self.validation_loss: float | None = None
        self._tokens_per_second = 0.0
        self._compiling = True
        self._saved_step = self.state.step if resume_from else -1
        if self.writes:
            self.recorder = Recorder(work / "logs", self.state.step if resume_from else None)
            self.progress = Progress("pretrain", config.steps, "steps", every_seconds=2.0)

    def to_the_end(
        self,
        stop: StopRequest,
        while_compiling: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        """Steps until the last one, with validation and checkpoints on the way."""
        config = self.config
        with while_compiling():
            self._validate()  # compiles; measured again at the steps that ask for it
            if self.state.step == 0 and self.writes and self.validation_loss is not None:
                row = Row(0, self.validation_loss, 0.0, 0.0, 1, 0.0, self.validation_loss)
                self.recorder.add(row)
            if self.state.step < config.steps:
                self._step()
        self._compiling = False
        while self.state.step < config.steps:
            if stop.requested:
                self._stop_here(stop)
            self._step()

    def _step(self) -> None:
        config, step = self.config, self.state.step + 1
        rate = learning_rate(step, config.steps, config.optimizer.learning_rate, config.schedule)
        begin = time.perf_counter()
        batches: list[Batch] = []
        for samples in step_samples(
            step,
            sequences=config.batch.sequences(),
            micro_size=config.micro_size,
            rank=self.group.rank,
            processes=self.group.size,
        ):
            batches.append(self.windows.batch(samples))
        result = self.trainer.step(batches, rate)
        seconds = time.perf_counter() - begin
        self._note(step, result)
        last = step == config.steps
        due = last or step % config.validation.every == 0
        if due:
            self._validate()
        if self.writes:
            self._report(step, result, rate, seconds, due)
        if self.state.skipped_in_a_row >= config.max_nonfinite_steps:
            raise StageFailed(_not_finite(config, step))
        if self.writes and (last or step % config.checkpoint.every == 0):
            self._save()

    def _note(self, step: int, result: StepResult) -> None:
        epoch, index = self.windows.position(step * self.config.batch.sequences())
        good = result.applied and math.isfinite(result.loss)
        losses = self.state.recent_losses + ([result.loss] if good else [])
        self.state = State(
            step=step,
            updates=self.trainer.updates,
            skipped_in_a_row=0 if good else self.state.skipped_in_a_row + 1,
            tokens=self.state.tokens + result.tokens,
            recent_losses=losses[-RECENT:],
            data=DataPosition(seed=self.config.seed, epoch=epoch, index=index),
            rng=self.state.rng,
        )

    def _report(
        self, step: int, result: StepResult, rate: float, seconds: float, validated: bool
    ) -> None:
        speed = result.tokens / seconds
        # Smoothed for the eye only; the file has each step's own. The first step compiles.
        old = self._tokens_per_second
        if not self._compiling:
            self._tokens_per_second = 0.9 * old + 0.1 * speed if old else speed
        self.recorder.add(
            Row(
                step,
                result.loss,
                rate,
                result.gradient_norm,
                int(result.applied),
                round(speed, 1),
                self.validation_loss if validated else None,
            )
        )
        values = {"loss": f"{result.loss:.4f}", "lr": f"{rate:.2e}"}
        if self.validation_loss is not None:
            values["validation"] = f"{self.validation_loss:.4f}"
        if self._tokens_per_second:
            values["tokens/s"] = f"{self._tokens_per_second:,.0f}"
        if self.state.skipped_in_a_row:
            values["skipped"] = "loss or gradient not finite"
        self.progress.update(step, **values)

    def _validate(self) -> None:
        total, tokens = self.trainer.evaluate(self.held_out)
        self.validation_loss = total / tokens if tokens else None

    def _save(self) -> None:
        means, squares = self.trainer.state()
        self.recorder.flush()
        self.rolling.save(
            self.state,
            weights.read_base(self.decoder, self.shape),
            dict(weights.to_hf(self.shape, means)),
            dict(weights.to_hf(self.shape, squares)),
        )
        self._saved_step = self.state.step

    def _stop_here(self, stop: StopRequest) -> None:
        if self.writes:
            if self._saved_step != self.state.step:
                self._save()
            print(f"pretrain: wrote a checkpoint at step {self.state.step}", flush=True)
        stop.raise_it()

    def finish(self) -> None:
        """Turn the last checkpoint into the artifact."""
        if not self.writes:
            return
        self.recorder.close()
        write_artifact(
            self.work,
            self.rolling,
            self.shape,
            self.corpus,
            self.state,
            validation_loss=self.validation_loss,
            steps=self.config.steps,
            tokenizer=None if self.initial is None else self.initial.directory,
        )


def _shape(config: PretrainConfig, corpus: TokenCorpus, initial: HFModel | None) -> Architecture:
    if config.model == "initial":
        assert initial is not None, "looked at before"
        return initial.architecture
    return config.model.architecture(corpus.vocab_size, config.batch.sequence_length)


def _make_trainer(
    config: PretrainConfig,
    shape: Architecture,
    resume_from: Checkpoint | None,
    group: Group,
    initial: HFModel | None,
) -> tuple[Decoder, Trainer]:
    decoder = Decoder(shape)
    if resume_from is None and initial is not None:
        weights.load(decoder, shape, initial.weights)
    elif resume_from is None:
        assert config.model != "initial"
        drawn = initial_tensors(
            shape,
            config.seed,
            std=config.model.init_std,
            embedding_std=config.model.embedding_std,
        )
        weights.load(decoder, shape, dict(drawn))
    else:
        weights.load(decoder, shape, resume_from.tensors())
    trainer = Trainer(shape, decoder, config.optimizer, group.size)
    if resume_from is not None:
        means, squares = resume_from.moments()
        trainer.set_state(
            weights.to_engine(shape, means),
            weights.to_engine(shape, squares),
            resume_from.state.updates,
        )
    return decoder, trainer


def _start(config: PretrainConfig) -> State:
    rng: dict[str, Any] = {
        "data order": "numpy PCG64 of [seed, epoch]",
        "drawn while training": "nothing",
    }
    return State(
        step=0,
        updates=0,
        skipped_in_a_row=0,
        tokens=0,
        recent_losses=[],
        data=DataPosition(seed=config.seed, epoch=0, index=0),
        rng=rng,
    )


def _not_finite(config: PretrainConfig, step: int) -> str:
    rate, warmup = config.optimizer.learning_rate, config.schedule.warmup_steps
    std = "" if config.model == "initial" else f" than {config.model.init_std}"
    smaller = ", or a smaller model.init_std" + std if std else ""
    return (
        f"pretrain: loss or gradient was not finite in {config.max_nonfinite_steps} steps in a "
        f"row, up to step {step}; try optimizer.learning_rate {rate / 3:.1e} instead of "
        f"{rate:.1e}, schedule.warmup_steps {max(2 * warmup, 100)} instead of {warmup}{smaller}"
    )
