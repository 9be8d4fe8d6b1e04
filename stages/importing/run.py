"""Hugging Face directory -> checkpoint: checked, streamed tensor by tensor, read back."""

from typing import Any

import numpy as np

from artifacts.errors import BadInput, StageFailed
from artifacts.fields import size_in_bytes
from artifacts.hf_model import (
    GENERATION,
    NUMPY,
    HFModel,
    differing,
    generation_config,
    read_model,
    tokenizer_problems,
    write_configs,
    write_weights,
)
from artifacts.json_files import write_object
from artifacts.sentencepiece_model import take_tokenizer
from stages.importing.config import ImportConfig
from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    """Every tensor keeps its type and its bits; files that nobody reads stay behind."""
    config: ImportConfig = job.config
    source = read_model(config.directory)
    tokenizer = take_tokenizer(source.directory, job.work)
    if problems := tokenizer_problems(source, tokenizer):
        raise BadInput(*problems)
    for note in (*source.notes, *tokenizer.notes):
        print(f"import: {note}", flush=True)

    types = {name: source.weights.stored(name) for name in source.weights}
    write_configs(
        job.work,
        source.architecture,
        dtype=_usual(types),
        bos_id=source.bos_id,
        eos_ids=source.eos_ids,
        pad_id=source.pad_id,
    )
    if generation := generation_config(source):
        write_object(job.work / GENERATION, generation)
    shard_bytes = size_in_bytes(config.max_shard_size)
    where = str(source.directory)
    write_weights(job.work, source.architecture, source.weights.raw, types, shard_bytes, where)
    _read_back(source, read_model(job.work))
    return {
        "family": source.architecture.family,
        "parameters": source.architecture.parameter_count(),
        "dtype": " and ".join(sorted({str(dtype) for dtype in types.values()})),
        "files": len(list(job.work.glob("*.safetensors"))),
        "tokens": tokenizer.rows,
    }


def _usual(types: dict[str, np.dtype[Any]]) -> Any:
    """The type that `config.json` names: of most tensors, as far as it has a name there."""
    counts = {name: list(types.values()).count(dtype) for name, dtype in NUMPY.items()}
    return max(counts, key=lambda name: counts[name])


def _read_back(source: HFModel, written: HFModel) -> None:
    wrong = [
        name
        for name in source.weights
        if differing(
            source.weights.raw(name), written.weights.raw(name), source.weights.stored(name)
        )
    ]
    if wrong:
        raise StageFailed(
            f"{written.directory}: does not read back as it was written: {', '.join(wrong)}"
        )
