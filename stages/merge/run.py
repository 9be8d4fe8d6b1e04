"""Base + LoRA adapter -> one model in the base's dtype, proved against the two kept apart."""

from pathlib import Path
from typing import Any

import numpy as np

from artifacts.adapter import Adapter, read_adapter
from artifacts.agreement import ALLOWED, compare
from artifacts.errors import StageFailed
from artifacts.fields import size_in_bytes
from artifacts.hf_model import HFModel, copy_configs, read_model, write_weights
from artifacts.manifest import Manifest, read_manifest
from artifacts.tokenizer_files import read_tokenizer, write_object
from stages.merge.config import MergeConfig
from stages.merge.merging import Merger, check_says_something
from stages.merge.record import RECORD, Merge, MergeRecord, check_not_merged, read_record
from stages.spec import Job

BATCH, LENGTH = 2, 24
"""Size of the proof, in rows and tokens."""


def run(job: Job) -> dict[str, Any]:
    """Merge, prove, report."""
    config: MergeConfig = job.config
    base_path, adapter_path = job.inputs["model"], job.inputs["adapter"]
    base, adapter = read_model(base_path), read_adapter(adapter_path)
    tokenizer = read_tokenizer(base_path)
    for note in (*base.notes, *adapter.notes):
        print(f"merge: {note}", flush=True)
    base_manifest, adapter_manifest = read_manifest(base_path), read_manifest(adapter_path)
    earlier = read_record(base_path)
    check_not_merged(earlier, adapter, adapter_manifest.digest)
    adapter.check_base(base_manifest)
    adapter.check_fits(base.architecture)
    check_says_something(adapter)

    merger = Merger(base, adapter)
    shard_bytes = size_in_bytes(config.max_shard_size)
    write_weights(
        job.work,
        base.architecture,
        merger,
        base.dtype,
        shard_bytes,
        f"{base_path} with its adapter",
    )
    merger.check_changed()
    copy_configs(base, job.work)
    tokenizer.copy_to(job.work)

    merge = _described(adapter, base_manifest, adapter_manifest, merger)
    proof = prove(job.work, base, adapter_path)
    merges = [*(earlier.merges if earlier else []), merge]
    write_object(job.work / RECORD, MergeRecord(merges=merges, proof=proof).model_dump())
    return {
        "modules": merge.modules,
        "dtype": base.dtype,
        "scaling": merge.scaling,
        "max_abs_change": merge.max_abs_change,
        "changed_share": merge.changed_share,
        "max_error": proof["scaled"],
    }


def _described(
    adapter: Adapter, base: Manifest, adapter_manifest: Manifest, merger: Merger
) -> Merge:
    return Merge(
        base_digest=base.digest,
        base_identity=base.identity,
        adapter_digest=adapter_manifest.digest,
        adapter_identity=adapter_manifest.identity,
        rank=adapter.rank,
        alpha=adapter.alpha,
        scaling=adapter.scaling,
        targets=list(adapter.targets),
        modules=len(adapter.tensors),
        max_abs_change=merger.max_abs_change,
        changed_share=merger.changed / merger.weights,
    )


def prove(merged: Path, base: HFModel, adapter: Path) -> dict[str, Any]:
    """Compare the merged model, as stored, with base and adapter kept apart.

    Raises StageFailed if they do not agree.
    """
    # Here, since they bring MindSpore: bad input is refused before those seconds.
    from stages.engine import runtime
    from stages.engine.inference import InferenceModel

    runtime.start("CPU")  # the proof compares in plain fp32, which every machine has
    vocabulary, longest = base.architecture.vocab_size, base.architecture.max_positions
    shape = (BATCH, min(LENGTH, longest))
    ids_BT = np.random.default_rng(0).integers(0, vocabulary, shape, dtype=np.int32)
    apart_BTV = InferenceModel.load(base.directory, adapter).logits(ids_BT)
    merged_BTV = InferenceModel.load(merged).logits(ids_BT)
    difference = compare(apart_BTV, merged_BTV)
    allowed = ALLOWED[base.dtype]
    if not difference.within(allowed):
        raise StageFailed(
            f"logits of the merged model are {difference.scaled:.3g} away from those of base and "
            f"adapter apart, allowed at {base.dtype} is {allowed:.3g}"
        )
    return {
        "passed": True,
        "engine": "mindspore float32, merged against base + adapter",
        "tokens": int(ids_BT.size),
        "max_abs": difference.max_abs,
        "scale": difference.scale,
        "scaled": difference.scaled,
        "threshold": allowed,
    }
