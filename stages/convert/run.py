"""Checkpoint -> Hugging Face directory, written tensor by tensor and proved by reading it back."""

from pathlib import Path
from typing import Any

import numpy as np

from artifacts.architecture import Architecture
from artifacts.errors import BadInput, StageFailed
from artifacts.fields import size_in_bytes
from artifacts.hf_model import (
    EMBEDDING,
    GENERATION,
    HEAD,
    HFModel,
    generation_config,
    read_model,
    tokenizer_problems,
    write_configs,
    write_weights,
)
from artifacts.tokenizer_files import TokenizerFiles, read_tokenizer, write_object
from stages.convert.config import ConvertConfig
from stages.convert.proof import logits_or_why_not, stored_difference
from stages.spec import Job

REPORT = "conversion.json"


def run(job: Job) -> dict[str, Any]:
    """Convert, prove, report."""
    config: ConvertConfig = job.config
    source = read_model(job.inputs["checkpoint"])
    tokenizer = read_tokenizer(source.directory)
    target = fitted(source, tokenizer, config.cut_padding)
    for note in source.notes:
        print(f"convert: {note}", flush=True)

    write_configs(
        job.work,
        target,
        dtype=config.dtype,
        bos_id=source.bos_id,
        eos_ids=source.eos_ids,
        pad_id=source.pad_id,
    )
    if generation := generation_config(source):  # of an imported model
        write_object(job.work / GENERATION, generation)
    tokenizer.copy_to(job.work)

    def cut(name: str) -> np.ndarray:
        rows = target.vocab_size if name in (EMBEDDING, HEAD) else None
        return source.weights.raw(name)[:rows]

    shard_bytes = size_in_bytes(config.max_shard_size)
    write_weights(job.work, target, cut, config.dtype, shard_bytes, str(source.directory))

    report = prove(source, job.work, tokenizer, config)
    write_object(job.work / REPORT, report)
    return {
        "parameters": target.parameter_count(),
        "dtype": config.dtype,
        "files": len(list(job.work.glob("*.safetensors"))),
        "rows_cut": report["rows_cut"],
        "max_error": report["logits"]["scaled"],
    }


def fitted(source: HFModel, tokenizer: TokenizerFiles, cut_padding: bool) -> Architecture:
    """The architecture to write: the source's, without padding rows if they are to be cut.

    Raises BadInput if model and tokenizer do not belong together.
    """
    problems = tokenizer_problems(source, tokenizer)
    ids = [*source.eos_ids, source.bos_id, source.pad_id]
    vocab_size = tokenizer.rows if cut_padding else source.architecture.vocab_size
    problems += [
        f"{source.directory / 'config.json'}: names token {each}, the vocabulary has {vocab_size}"
        for each in ids
        if each is not None and each >= vocab_size
    ]
    if problems:
        raise BadInput(*problems)
    return source.architecture.model_copy(update={"vocab_size": vocab_size})


def prove(
    source: HFModel, directory: Path, tokenizer: TokenizerFiles, config: ConvertConfig
) -> dict[str, Any]:
    """Read `directory` back and compare it with the checkpoint, stored bits and logits.

    Raises StageFailed if they do not agree.
    """
    written = read_model(directory)
    wrong = stored_difference(source, written, config.dtype)
    if wrong:
        raise StageFailed(f"{directory}: does not read back as it was written: {', '.join(wrong)}")
    logits = logits_or_why_not(source, written, config.dtype)
    if logits["passed"] is False:
        raise StageFailed(
            f"logits of the Hugging Face directory are {logits['scaled']:.3g} away from the "
            f"checkpoint's, allowed at {config.dtype} is {logits['threshold']:.3g}"
        )
    rows = source.architecture.vocab_size
    return {
        "format": 1,
        "dtype": config.dtype,
        "tensors": len(written.weights),
        "rows": written.architecture.vocab_size,
        "rows_cut": rows - written.architecture.vocab_size,
        "rows_without_token": written.architecture.vocab_size - tokenizer.rows,
        "stored": "every tensor reads back as the checkpoint's, cast to dtype, bit for bit",
        "logits": logits,
        "notes": source.notes,
    }
