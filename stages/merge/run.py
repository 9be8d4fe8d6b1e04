"""Base + LoRA adapters -> one model in the base's dtype, proved against them kept apart."""

from pathlib import Path
from typing import Any

import numpy as np

from artifacts.adapter import TENSORS, read_adapter, read_chat_template
from artifacts.agreement import ALLOWED, compare
from artifacts.errors import BadInput, StageFailed
from artifacts.fields import size_in_bytes
from artifacts.hf_model import HFModel, copy_configs, read_model, write_weights
from artifacts.manifest import Manifest, read_manifest
from artifacts.tokenizer_files import read_tokenizer, write_object
from stages.merge.config import ADAPTERS, MergeConfig
from stages.merge.merging import Merger, Weighted, check_says_something, side_by_side
from stages.merge.record import RECORD, Merge, MergeRecord, check_not_merged, read_record
from stages.spec import Job

BATCH, LENGTH = 2, 24
"""Size of the proof, in rows and tokens."""


def run(job: Job) -> dict[str, Any]:
    """Merge, prove, report."""
    config: MergeConfig = job.config
    base_path = job.inputs["model"]
    base, base_manifest = read_model(base_path), read_manifest(base_path)
    tokenizer = read_tokenizer(base_path)
    paths = [job.inputs[role] for role in ADAPTERS if role in job.inputs]
    given = _weighted(paths, config.weights)
    for note in (*base.notes, *(note for each in given for note in each.adapter.notes)):
        print(f"merge: {note}", flush=True)
    manifests = [read_manifest(path) for path in paths]
    earlier = read_record(base_path)
    for each, manifest in zip(given, manifests, strict=True):
        check_not_merged(earlier, each.adapter, _tensors(manifest))
        if not config.force_base:
            each.adapter.check_base(base_manifest)
        each.adapter.check_fits(base.architecture)
        check_says_something(each.adapter)
    if len({_tensors(manifest) for manifest in manifests}) < len(manifests):
        raise BadInput("inputs: one adapter is given twice; merge.weights gives it more weight")

    chat_templates = {read_chat_template(path) for path in paths}
    if len(chat_templates) > 1:
        print("merge: the adapters' chat templates differ; the base's stays", flush=True)

    merger = Merger(base, given)
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
    tokenizer.copy_to(job.work, chat_templates.pop() if len(chat_templates) == 1 else None)

    described = [
        _described(each, base_manifest, manifest, merger)
        for each, manifest in zip(given, manifests, strict=True)
    ]
    proof = prove(job.work, base, given, paths)
    merges = [*(earlier.merges if earlier else []), *described]
    write_object(job.work / RECORD, MergeRecord(merges=merges, proof=proof).model_dump())
    several = {"adapters": len(given)} if len(given) > 1 else {}
    forced = {"forced": True} if any(merge.forced for merge in described) else {}
    return {
        "modules": len({module for each in given for module in each.adapter.tensors}),
        "dtype": base.dtype,
        "scaling": described[0].scaling,
        "max_abs_change": merger.max_abs_change,
        "changed_share": merger.changed / merger.weights,
        "max_error": proof["scaled"],
        **several,
        **forced,
    }


def _weighted(paths: list[Path], weights: tuple[float, ...]) -> list[Weighted]:
    if weights and len(weights) != len(paths):
        raise BadInput(
            f"merge.weights: has {len(weights)} numbers; {len(paths)} adapters are given"
        )
    factors = weights or (1.0,) * len(paths)
    return [Weighted(read_adapter(p), w) for p, w in zip(paths, factors, strict=True)]


def _tensors(manifest: Manifest) -> str:
    """sha256 of an adapter's tensors, which say the same whatever base they are bound to."""
    return next(file.sha256 for file in manifest.files if file.path == TENSORS)


def _described(
    weighted: Weighted, base: Manifest, adapter_manifest: Manifest, merger: Merger
) -> Merge:
    adapter = weighted.adapter
    return Merge(
        base_digest=base.digest,
        base_identity=base.identity,
        adapter_digest=adapter_manifest.digest,
        adapter_identity=adapter_manifest.identity,
        adapter_tensors=_tensors(adapter_manifest),
        rank=adapter.rank,
        alpha=adapter.alpha,
        scaling=adapter.scaling,
        targets=list(adapter.leaves),
        modules=len(adapter.tensors),
        max_abs_change=merger.max_abs_change,
        changed_share=merger.changed / merger.weights,
        weight=weighted.weight,
        forced=adapter.base is None or adapter.base.digest != base.digest,
    )


def prove(merged: Path, base: HFModel, given: list[Weighted], paths: list[Path]) -> dict[str, Any]:
    """Compare the merged model, as stored, with base and adapters kept apart.

    Raises StageFailed if they do not agree.
    """
    # Here, since they bring MindSpore: bad input is refused before those seconds.
    from stages.engine import runtime
    from stages.engine.inference import InferenceModel
    from stages.engine.model import Lora

    runtime.start("CPU")  # the proof compares in plain fp32, which every machine has
    vocabulary, longest = base.architecture.vocab_size, base.architecture.max_positions
    shape = (BATCH, min(LENGTH, longest))
    ids_BT = np.random.default_rng(0).integers(0, vocabulary, shape, dtype=np.int32)
    if len(given) == 1 and given[0].weight == 1.0:
        apart = InferenceModel.load(base.directory, paths[0])
    else:
        pairs, tensors = side_by_side(given)
        apart = InferenceModel(base.architecture, base.weights, (Lora(pairs), tensors))
    apart_BTV = apart.logits(ids_BT)
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
