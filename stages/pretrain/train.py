"""The training loop of one process, alone or as one rank of several.

Graph, data order and checkpoints do not depend on the number of ranks. Rank 0 alone writes.
"""

# First: it sets what MindSpore reads when it is imported.
from stages.engine import runtime  # isort: skip

import contextlib
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.architecture import Architecture
from artifacts.corpus import TokenCorpus
from artifacts.errors import StageFailed
from artifacts.hf_model import HFModel, read_model
from artifacts.manifest import read_manifest
from stages.engine import shards, weights
from stages.engine.groups import Mesh, mesh, tell_all, wait_for_all
from stages.engine.initial import initial_tensors
from stages.engine.mesh import Place
from stages.engine.model import Decoder
from stages.engine.parallel import Group
from stages.engine.peak import measured_peak
from stages.engine.precision import LossScale, check_device
from stages.engine.settings import learning_rate
from stages.engine.stopping import StopRequest, dying_at_once, watching
from stages.engine.trainers import make_trainer
from stages.engine.training import Batch, StepResult, Trainer
from stages.pretrain.background import Background
from stages.pretrain.config import PretrainConfig
from stages.pretrain.data import Windows, step_samples, validation_batches
from stages.pretrain.finish import write_artifact
from stages.pretrain.record import Recorder, Row
from stages.pretrain.rolling import (
    CHECKPOINTS,
    Checkpoint,
    DataPosition,
    Rolling,
    ScaleState,
    State,
)
from stages.pretrain.timing import Times, is_spike, step_flops
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
    check_device(config.precision, runtime.start(config.device, config.seed))
    corpus = TokenCorpus(corpus_directory)
    start = None if initial is None else read_model(initial)
    run = Run(config, corpus, work, resume_from, group, start)
    if group.rank > 0:  # signals are rank 0's business; the others end when it has written
        run.to_the_end(StopRequest(), contextlib.nullcontext)
        return
    with watching() as stop, run.background:
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
        self._corpus_digest = read_manifest(corpus.directory).digest
        self.initial = initial
        self.shape = config.shape(corpus.vocab_size, initial.architecture if initial else None)
        self.mesh = mesh(Place(config.parallel.layout, group.rank))
        place = self.mesh.place
        self.windows = Windows(corpus.split("train"), config.batch.sequence_length, config.seed)
        self.held_out = validation_batches(
            corpus.split("validation"),
            length=config.batch.sequence_length,
            windows=config.validation.batches * config.batch.sequences(),
            micro_size=config.micro_size,
            rank=place.data,
            processes=place.layout.data,
        )
        self.decoder, self.trainer = _make_trainer(
            config, self.shape, resume_from, self.mesh, initial
        )
        self.state = resume_from.state if resume_from else _start(config)
        self.rolling = Rolling(work / CHECKPOINTS, config.checkpoint.keep)
        self.background = Background()
        self.writes = group.rank == 0
        self.writes_parts = place.layout.tensor * place.layout.pipeline > 1
        self.validation_loss: float | None = None
        self.times = Times()
        """Of the whole run, as far as this process goes."""
        self._unreported = Times()
        """Since the last row."""
        self._flops = step_flops(config, self.shape)
        self._peak = self._collective_seconds = 0.0
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
            self._measure()
            self._validate()  # compiles; measured again at the steps that ask for it
            if self.state.step == 0 and self.writes and self.validation_loss is not None:
                row = Row(0, self.validation_loss, 0.0, 0.0, 1, 0.0, self.validation_loss)
                self.recorder.add(row)
            if self.state.step < config.steps:
                self._step()
        self._compiling = False
        while self.state.step < config.steps:
            if self._agreed(stop):
                self._stop_here(stop)
                return
            self._step()

    def _measure(self) -> None:
        """What the steps' times are compared with."""
        config = self.config
        self._peak = measured_peak(self.mesh, config.precision)
        rows = config.micro_size * config.batch.sequence_length
        self._collective_seconds = self.trainer.collective_seconds(rows, config.accumulation)

    def _agreed(self, stop: StopRequest) -> bool:
        """Whether to stop. Only rank 0 hears signals; who has a part to write must be told."""
        if not self._all_save:
            return stop.requested
        return tell_all(self.mesh, stop.requested)

    @property
    def _all_save(self) -> bool:
        """Whether a checkpoint takes all processes: each writes its part, or sends its slice."""
        return self.writes_parts or self.mesh.place.layout.zero > 0

    def _step(self) -> None:
        self.background.check()
        config, step = self.config, self.state.step + 1
        rate = learning_rate(step, config.steps, config.optimizer.learning_rate, config.schedule)
        begin = time.perf_counter()
        batches: list[Batch] = []
        for samples in step_samples(
            step,
            sequences=config.batch.sequences(),
            micro_size=config.micro_size,
            rank=self.mesh.place.data,
            processes=self.mesh.place.layout.data,
        ):
            batches.append(self.windows.batch(samples))
        loaded = time.perf_counter()
        scale = self.trainer.loss_scale.value if self.trainer.loss_scale else 1.0
        result = self.trainer.step(batches, rate)
        seconds = time.perf_counter() - loaded
        communication = min(self._collective_seconds + result.exchange_seconds, seconds)
        self._unreported.add(Times(loaded - begin, seconds - communication, communication))
        before = self.state.recent_losses
        self._note(step, result)
        last = step == config.steps
        due = last or step % config.validation.every == 0
        if due:
            self._validate()
        if self.writes:
            row = self._row(result, rate, scale, is_spike(result.loss, before))
            self._report(row, result, due)
        if self.state.skipped_in_a_row >= config.max_nonfinite_steps:
            raise StageFailed(_not_finite(config, step))
        if last or step % config.checkpoint.every == 0:
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
            data=DataPosition(
                seed=self.config.seed, epoch=epoch, index=index, corpus=self._corpus_digest
            ),
            rng=self.state.rng,
            loss_scale=_scale_state(self.trainer.loss_scale),
        )

    def _row(self, result: StepResult, rate: float, scale: float, spike: bool) -> Row:
        times, self._unreported = self._unreported, Times()
        self.times.add(times)
        speed = result.tokens / times.step
        return Row(
            step=self.state.step,
            loss=result.loss,
            learning_rate=rate,
            gradient_norm=result.gradient_norm,
            applied=int(result.applied),
            tokens_per_second=round(speed, 1),
            tokens_per_second_a_device=round(speed / self.mesh.place.layout.size, 1),
            mfu=round(self._flops / times.step / self._peak, 4),
            data_seconds=round(times.data, 6),
            compute_seconds=round(times.compute, 6),
            communication_seconds=round(times.communication, 6),
            checkpoint_seconds=round(times.checkpoint, 6),
            loss_scale=scale,
            spike=int(spike),
        )

    def _report(self, row: Row, result: StepResult, validated: bool) -> None:
        step, speed = row.step, row.tokens_per_second
        # Smoothed for the eye only; the file has each step's own. The first step compiles.
        old = self._tokens_per_second
        if not self._compiling:
            self._tokens_per_second = 0.9 * old + 0.1 * speed if old else speed
        if validated:
            row.validation_loss = self.validation_loss
        self.recorder.add(row)
        if row.spike:
            text = f"loss spike at step {step}: {row.loss:.4f}, above all of the last {RECENT}"
            print(f"pretrain: {text}", flush=True)
        if not result.applied:
            text = f"step {step} was skipped: its loss or gradient was not finite"
            if self.trainer.loss_scale is not None:
                text += f" at loss scale {row.loss_scale:g}"
            print(f"pretrain: {text}", flush=True)
        values = {"loss": f"{row.loss:.4f}", "lr": f"{row.learning_rate:.2e}"}
        if self.validation_loss is not None:
            values["validation"] = f"{self.validation_loss:.4f}"
        if self._tokens_per_second:
            values["tokens/s"] = f"{self._tokens_per_second:,.0f}"
        if self.state.skipped_in_a_row:
            values["skipped"] = "loss or gradient not finite"
        self.progress.update(step, **values)

    def _validate(self) -> None:
        begin = time.perf_counter()
        total, tokens = self.trainer.evaluate(self.held_out)
        self._unreported.validation += time.perf_counter() - begin
        self.validation_loss = total / tokens if tokens else None

    def _save(self) -> None:
        if not (self.writes or self._all_save):
            return
        begin = time.perf_counter()
        means, squares = self.trainer.state()
        if self.writes:
            self.recorder.flush()
        if self.writes_parts:
            self._save_parts(means, squares)
        elif self.writes:
            # Copies: the next step changes what these would otherwise be pages of.
            tensors = {n: v.copy() for n, v in weights.read_base(self.decoder, self.shape).items()}
            whole = (dict(weights.to_hf(self.shape, moments)) for moments in (means, squares))
            self.background.start(partial(self.rolling.save, self.state, tensors, *whole))
        self._saved_step = self.state.step
        self._unreported.checkpoint += time.perf_counter() - begin

    def _save_parts(self, means: dict[str, np.ndarray], squares: dict[str, np.ndarray]) -> None:
        """All write their pieces into the whole model's files, whose layout is that of one."""
        place, step = self.mesh.place, self.state.step
        if self.writes:
            self.rolling.begin(step, self.shape.tensor_shapes())
        wait_for_all(self.mesh)
        if place.data == 0:
            self.rolling.part(
                step,
                shards.own(place, shards.read(self.decoder, self.shape, place)),
                shards.own(place, shards.to_hf(self.shape, place, means)),
                shards.own(place, shards.to_hf(self.shape, place, squares)),
            )
        wait_for_all(self.mesh)
        if self.writes:
            self.rolling.finish(self.state)

    def _stop_here(self, stop: StopRequest) -> None:
        if self._saved_step != self.state.step:
            self._save()
        if self.writes:
            self.background.wait()
            print(f"pretrain: wrote a checkpoint at step {self.state.step}", flush=True)
            stop.raise_it()

    def finish(self) -> None:
        """Turn the last checkpoint into the artifact."""
        if not self.writes:
            return
        self.background.wait()
        self.recorder.close()
        self.times.add(self._unreported)
        print(f"pretrain: {self.times.sentence()}", flush=True)
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


def _make_trainer(
    config: PretrainConfig,
    shape: Architecture,
    resume_from: Checkpoint | None,
    found: Mesh,
    initial: HFModel | None,
) -> tuple[Decoder, Trainer]:
    place = found.place
    decoder = shards.make_decoder(shape, found, config.precision)
    if resume_from is None and initial is not None:
        shards.load(decoder, shape, place, initial.weights)
    elif resume_from is None:
        assert config.model != "initial"
        drawn = initial_tensors(
            shape,
            config.seed,
            std=config.model.init_std,
            embedding_std=config.model.embedding_std,
        )
        shards.load(decoder, shape, place, dict(drawn))
    else:
        shards.load(decoder, shape, place, resume_from.tensors())
    scale = _loss_scale(config, resume_from.state if resume_from else None)
    trainer = make_trainer(shape, decoder, config.optimizer, found, scale, config.recompute)
    if resume_from is not None:
        means, squares = resume_from.moments()
        trainer.set_state(
            shards.to_engine(shape, place, means),
            shards.to_engine(shape, place, squares),
            resume_from.state.updates,
        )
    return decoder, trainer


def _loss_scale(config: PretrainConfig, state: State | None) -> LossScale | None:
    if config.precision == "fp32":
        return None
    if config.loss_scale != "dynamic":
        return LossScale(config.loss_scale, is_dynamic=False)
    if state is None or state.loss_scale is None:
        return LossScale()
    return LossScale(state.loss_scale.value, good_steps=state.loss_scale.good_steps)


def _scale_state(scale: LossScale | None) -> ScaleState | None:
    return None if scale is None else ScaleState(value=scale.value, good_steps=scale.good_steps)


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
    if config.loss_scale != "dynamic":
        smaller += f", or a smaller loss_scale than {config.loss_scale:g}"
    if config.precision != "fp32":
        smaller += f", or precision fp32 instead of {config.precision}"
    return (
        f"pretrain: loss or gradient was not finite in {config.max_nonfinite_steps} steps in a "
        f"row, up to step {step}; try optimizer.learning_rate {rate / 3:.1e} instead of "
        f"{rate:.1e}, schedule.warmup_steps {max(2 * warmup, 100)} instead of {warmup}{smaller}"
    )
