"""Pretrain: find where a killed run stood, then train here or in several processes."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from artifacts.architecture import Architecture
from artifacts.corpus import TokenCorpus
from artifacts.errors import BadInput
from artifacts.hf_model import read_model
from artifacts.manifest import read_manifest
from artifacts.tokenizer_files import PROBE, TOKENIZER, load_tokenizer
from stages.engine import parallel
from stages.engine.machines import Team, together
from stages.engine.mesh import bubble
from stages.pretrain.config import PretrainConfig
from stages.pretrain.finish import RANKS, is_finished, leave_only_the_artifact, read_headline
from stages.pretrain.rolling import CHECKPOINTS, Checkpoint, Rolling, State
from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    """Fill `job.work` with the checkpoint artifact; returns its headline figures.

    On a machine that helps, start this machine's processes and leave the writing to machine 0.
    """
    config: PretrainConfig = job.config
    corpus = TokenCorpus(job.inputs["corpus"])
    _check_corpus(corpus, config)
    _check_initial(corpus, config, job.inputs.get("initial"))
    initial = read_model(job.inputs["initial"]).architecture if "initial" in job.inputs else None
    _check_layout(config.shape(corpus.vocab_size, initial), config)
    if config.helps():
        _launch(job, config, None)
        return {}
    if not is_finished(job.work):
        _train(job, config)
    leave_only_the_artifact(job.work)
    return read_headline(job.work)


def _check_layout(shape: Architecture, config: PretrainConfig) -> None:
    """What the layout must divide and the config does not know alone: see also its own checks."""
    layout = config.parallel.layout
    problems = list(layout.vocabulary_misfits(shape.vocab_size))
    if config.model == "initial":
        problems += layout.misfits(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            intermediate_size=shape.intermediate_size,
            layers=shape.layers,
        )
    if problems:
        raise BadInput(*(f"pretrain.{problem}" for problem in problems))


def _adopted(rolling: Rolling, config: PretrainConfig, path: Path, corpus: Path) -> Checkpoint:
    """Another run's checkpoint as ours. Raises BadInput if it cannot be gone on from."""
    state = rolling.whole(path).state
    problems = []
    if state.step > config.steps:
        problems.append(f"stands at step {state.step}; pretrain.steps is {config.steps}")
    if state.data.seed != config.seed:
        problems.append(
            f"was drawn with seed {state.data.seed}; pretrain.seed is {config.seed}, so the data "
            "would come in another order"
        )
    digest = read_manifest(corpus).digest
    if state.data.corpus != digest:
        known = "one it does not name" if state.data.corpus is None else state.data.corpus[:16]
        problems.append(f"was trained on the corpus {known}; this one is {digest[:16]}")
    else:
        problems += _misplaced(state, config, TokenCorpus(corpus).split("train").tokens)
    if problems:
        raise BadInput(*(f"pretrain.resume_from: {problem}" for problem in problems))
    return rolling.adopt(path)


def _misplaced(state: State, config: PretrainConfig, tokens: int) -> Iterator[str]:
    """What shows that another batch than the config's led to `state`, on a corpus of `tokens`."""
    sequences, length = config.batch.sequences(), config.batch.sequence_length
    seen = state.step * sequences * length
    # As in `Windows`, which brings MindSpore.
    epoch, index = divmod(state.step * sequences, (tokens - 1) // length)
    if state.tokens != seen:
        yield (
            f"had {state.tokens} tokens in {state.step} steps; pretrain.batch would have had {seen}"
        )
    elif (state.data.epoch, state.data.index) != (epoch, index):
        yield (
            f"stands at sample {state.data.index} of epoch {state.data.epoch}; with pretrain.batch "
            f"({sequences} sequences of {length} tokens) it would be at {index} of {epoch}"
        )


def _say_bubble(config: PretrainConfig) -> None:
    layout, micro_batches = config.parallel.layout, config.accumulation
    if layout.pipeline == 1:
        return
    waiting = f"{bubble(layout.pipeline, micro_batches):.0%} of a step is waiting"
    text = f"{micro_batches} micro-batches through {layout.pipeline} stages, {waiting}"
    if micro_batches < layout.pipeline:
        text += "; fewer micro-batches than stages: a smaller batch.per_device_size gives more"
    print(f"pretrain: {text}", flush=True)


def _train(job: Job, config: PretrainConfig) -> None:
    corpus = job.inputs["corpus"]
    _say_bubble(config)
    rolling = Rolling(job.work / CHECKPOINTS, config.checkpoint.keep)
    latest, complaints = rolling.latest()
    for complaint in complaints:
        print(f"pretrain: {complaint}", file=sys.stderr, flush=True)
    rolling.clean(latest)
    if latest is None and config.resume_from is not None:
        latest = _adopted(rolling, config, Path(config.resume_from), corpus)
    if latest is not None:
        print(f"pretrain: goes on after step {latest.state.step} of {config.steps}", flush=True)
    if config.parallel.layout.size == 1:
        from stages.pretrain.train import train  # brings MindSpore, which a launcher does not need

        train(config, corpus, job.work, latest, parallel.Group(), job.inputs.get("initial"))
    else:
        scratch: Path = job.work / RANKS
        shutil.rmtree(scratch, ignore_errors=True)
        _launch(job, config, latest.state.step if latest else 0)


def _check_corpus(corpus: TokenCorpus, config: PretrainConfig) -> None:
    for split in ("train", "validation"):
        corpus.split(split).check_vocabulary(corpus.vocab_size)
    length, tokens = config.batch.sequence_length, corpus.split("train").tokens
    if tokens < length + 1:
        raise BadInput(
            f"pretrain.batch.sequence_length: is {length}; the corpus has only {tokens} training "
            f"tokens, at most {max(tokens - 1, 0)} would be right"
        )


def _check_initial(corpus: TokenCorpus, config: PretrainConfig, initial: Path | None) -> None:
    """Raise BadInput unless the config and the input agree, and model and corpus on every token."""
    if (config.model == "initial") != (initial is not None):
        if initial is None:
            raise BadInput("inputs.initial: is missing; pretrain.model is 'initial'")
        raise BadInput(
            "pretrain.model: states a shape, and a checkpoint to start from is given; "
            "'initial' takes the checkpoint's"
        )
    if initial is None:
        return
    shape, length = read_model(initial).architecture, config.batch.sequence_length
    problems = []
    if length > shape.max_positions:
        problems.append(
            f"pretrain.batch.sequence_length: is {length}; the model has {shape.max_positions} "
            "positions"
        )
    theirs, ours = (load_tokenizer(each / TOKENIZER) for each in (corpus.directory, initial))
    if theirs.get_vocab() != ours.get_vocab() or theirs.encode(PROBE).ids != ours.encode(PROBE).ids:
        problems.append(
            f"corpus.tokenizer: is another than the model's; file: {initial / TOKENIZER} "
            "would be right"
        )
    if corpus.vocab_size > shape.vocab_size:
        problems.append(
            f"{initial}: has {shape.vocab_size} rows, the corpus's tokens need {corpus.vocab_size}"
        )
    if problems:
        raise BadInput(*problems)


def _launch(job: Job, config: PretrainConfig, step: int | None) -> None:
    """Start this machine's processes, once all machines have come together if there are more.

    `step` is where the last checkpoint stands; None has it looked up when machine 0 is ready.
    """
    machines = config.parallel.machines
    if machines is None:
        _start_ranks(job, config, step, None)
        return

    def done() -> bool:
        return job.final is not None and job.final.exists()

    with together(machines, job.identity, done) as team:
        if team is not None:
            _start_ranks(job, config, step, team)


def _start_ranks(job: Job, config: PretrainConfig, step: int | None, team: Team | None) -> None:
    if step is None:
        # Machine 0 has removed what was not whole before it let anybody come.
        latest, _ = Rolling(job.work / CHECKPOINTS, config.checkpoint.keep).latest()
        step = latest.state.step if latest else 0
    text = json.dumps(
        {
            "config": config.model_dump(mode="json"),
            "corpus": str(job.inputs["corpus"]),
            "work": str(job.work),
            "resume_from": step,
            "initial": str(job.inputs["initial"]) if "initial" in job.inputs else None,
        }
    )
    parallel.launch(
        [sys.executable, "-m", "stages.pretrain.worker", text],
        config.parallel.layout.size,
        job.work / RANKS,
        config.parallel.timeout_seconds,
        team,
    )
