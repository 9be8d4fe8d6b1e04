"""`mindcycle plan`: what a pretraining will take, before it is started."""

import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from artifacts.errors import BadInput
from artifacts.fields import MOST, UNITS, size_in_bytes
from artifacts.json_files import read_object
from artifacts.validation import shown
from flows.columns import columns
from flows.lifecycle import RunConfig, load_config
from stages.engine.mesh import bubble
from stages.engine.settings import Precision
from stages.pretrain import estimate
from stages.pretrain.estimate import Memory, Work

WARMUP = (0.01, 0.1)
"""Customary shares of the steps that warm up."""


def print_plan(
    path: Path,
    overrides: Sequence[str],
    device_memory: str | None,
    devices: int | None,
    precision: Precision,
    reference_tokens: int | None,
) -> None:
    """Print everything that follows from the config. Raises BadInput; starts nothing."""
    if devices is not None and device_memory is None:
        raise BadInput(
            f"--devices: is {devices}; a layout is proposed for devices of a size, so give "
            "--device-memory as well, such as 64GiB"
        )
    config = load_config(RunConfig, path, overrides)
    room = None if device_memory is None else _bytes_of(device_memory)
    work = work_of(config, precision)
    print(_text(config, work, room, devices, reference_tokens))


def _bytes_of(text: str) -> int:
    try:
        return size_in_bytes(text)
    except ValueError as error:
        raise BadInput(f"--device-memory: is {text}; {error}") from None


def work_of(config: RunConfig, precision: Precision) -> Work:
    """The step that a config asks for. Raises BadInput if its model is not known yet."""
    pretrain = config.pretrain
    if pretrain.model == "initial":
        raise BadInput(
            "pretrain.model: is 'initial', whose sizes are known when it is given; "
            "state them to plan"
        )
    shape = pretrain.model.architecture(_vocabulary(config), pretrain.batch.sequence_length)
    if misfits := list(pretrain.parallel.layout.vocabulary_misfits(shape.vocab_size)):
        raise BadInput(*(f"pretrain.{text}" for text in misfits))
    return Work(
        shape,
        pretrain.parallel.layout,
        pretrain.batch.sequence_length,
        pretrain.batch.sequences(),
        pretrain.micro_size,
        precision,
        pretrain.recompute,
    )


def numpy_peak(size: int = 1024, tries: int = 5) -> float:
    """FLOP/s of this machine's float32 matrix product, the best of several."""
    a = np.random.default_rng(0).standard_normal((size, size), np.float32)
    best = float("inf")
    for _ in range(tries):
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def _vocabulary(config: RunConfig) -> int:
    tokenizer = config.corpus.tokenizer
    if tokenizer.vocab_size is not None:
        return tokenizer.vocab_size
    assert tokenizer.file is not None, "the config has one of them"
    held = read_object(Path(tokenizer.file))
    model, added = held.get("model"), held.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict | list) or not vocabulary:
        raise BadInput(
            f"corpus.tokenizer.file: {tokenizer.file} holds no vocabulary; names with ids, or "
            "unigram's list of pieces would be right"
        )
    tokens = added if isinstance(added, list) else [added] if added else []
    own = [token.get("id") if isinstance(token, dict) else None for token in tokens]
    # A unigram's pieces stand in the order of their ids.
    named = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    ids = [*named, *own]
    if strange := [id for id in ids if type(id) is not int or not 0 <= id < MOST]:
        raise BadInput(
            f"corpus.tokenizer.file: {tokenizer.file} has the token id {shown(strange[0])}; "
            "a number from 0 would be right"
        )
    return max(ids) + 1


def _text(
    config: RunConfig,
    work: Work,
    room: int | None,
    devices: int | None,
    reference_tokens: int | None,
) -> str:
    parts = [
        f"{config.name}: {_amount(work.shape.parameter_count())} parameters, {work.precision}",
        _memory_table(work, estimate.memory(work)),
        _step_table(config, work),
    ]
    if reference_tokens is not None:
        parts.append(_rate_advice(config, work, reference_tokens))
    parts += _warmup_advice(config)
    if room is not None:
        parts.append(_proposal(work, devices or work.layout.size, room))
    return "\n\n".join(parts)


def _memory_table(work: Work, memory: Memory) -> str:
    names = {
        "weights": "weights",
        "gradients": "gradients",
        "optimizer": "AdamW's means and squares",
        "masters": "float32 copies that AdamW works on",
        "activations": "activations",
        "logits": "logits",
    }
    rows = [("memory of the fullest process", "")]
    rows += [(names[f.name], _bytes(getattr(memory, f.name))) for f in fields(memory)]
    rows.insert(4, ("  so far", _bytes(memory.before_activations)))
    rows.append(("all", _bytes(memory.total)))
    return columns(rows)


def _step_table(config: RunConfig, work: Work) -> str:
    layout, peak = work.layout, numpy_peak()
    travels, work_flops = estimate.traffic(work), estimate.flops(work)
    here = work.tokens / estimate.seconds(work, peak, shared=True)
    rows = [
        ("one step", ""),
        ("global batch", f"{work.sequences} sequences, {work.tokens:,} tokens"),
        ("layout", f"data {layout.data} x tensor {layout.tensor} x pipeline {layout.pipeline}"),
        ("micro-batches", f"{work.micro_batches} of {work.micro_size} sequences a process"),
        ("sent a process, data", _bytes(travels.data)),
        ("sent a process, tensor", _bytes(travels.tensor)),
        ("sent a process, pipeline", _bytes(travels.pipeline)),
        ("pipeline's bubble", f"{bubble(layout.pipeline, work.micro_batches):.1%}"),
        ("products", f"{work_flops:.3g} FLOP"),
        ("peak of this machine", f"{peak / 1e9:.1f} GFLOP/s, measured now, all cores"),
        ("at most here, all processes on its cores", f"{here:,.0f} tokens/s"),
        ("all steps", f"{config.pretrain.steps * work.tokens:,} tokens"),
    ]
    if layout.size > 1:
        apart = work.tokens / estimate.seconds(work, peak, shared=False)
        rows.insert(-1, ("at most, each with such a machine", f"{apart:,.0f} tokens/s"))
    return columns(rows)


def _rate_advice(config: RunConfig, work: Work, reference_tokens: int) -> str:
    factor = work.tokens / reference_tokens
    rate = config.pretrain.optimizer.learning_rate
    return (
        f"learning rate: {rate:.2e} was found at {reference_tokens:,} tokens a step; for "
        f"{work.tokens:,} the square-root rule (customary for AdamW) gives "
        f"{rate * factor**0.5:.2e}, the linear rule (of SGD, the most to try) {rate * factor:.2e}"
    )


def _warmup_advice(config: RunConfig) -> list[str]:
    warmup, steps = config.pretrain.schedule.warmup_steps, config.pretrain.steps
    share, (least, most) = warmup / steps, WARMUP
    text = f"warm-up: {warmup} of {steps} steps, {share:.1%}"
    if not least <= share <= most:
        text += f"; customary are {least:.0%} to {most:.0%}"
    return [text]


def _proposal(work: Work, devices: int, room: int) -> str:
    found = estimate.proposals(work, devices, room)
    where = f"{devices} devices of {_bytes(room)}"
    if not found:
        return f"layout: none fits {where}; take more devices, or shorter sequences"
    best = found[0]
    layout = best.layout
    why = "the whole model fits in one"
    if layout.tensor > 1:
        why = "neither one device nor pipeline stages alone hold it"
    elif layout.pipeline > 1:
        why = "one device does not hold it"
    unused = ""
    if layout.size < devices:
        unused = f"; {work.sequences} sequences divide over {layout.size} devices at most"
    return (
        f"layout for {where}: parallel {{data: {layout.data}, tensor: {layout.tensor}, "
        f"pipeline: {layout.pipeline}}}, batch.per_device_size {best.micro_size} "
        f"({best.micro_batches} micro-batches, {_bytes(estimate.memory(best).total)} a process, "
        f"bubble {bubble(layout.pipeline, best.micro_batches):.1%}): {why}{unused}"
    )


def _amount(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"


def _bytes(number: int) -> str:
    """In GB and MB of powers of ten, as device memory and the rules of thumb are counted."""
    for unit in ("TB", "GB", "MB", "KB"):
        if number >= UNITS[unit]:
            return f"{number / UNITS[unit]:.2f} {unit}"
    return f"{number} bytes"
