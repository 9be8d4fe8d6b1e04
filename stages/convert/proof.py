"""The proof of a conversion: what was written, read back by other code, says the same."""

from typing import Any

import numpy as np

from artifacts.agreement import ALLOWED, compare
from artifacts.fields import DType
from artifacts.hf_model import NUMPY, HFModel, differing
from stages.convert.reference import reference_logits

BATCH, LENGTH = 2, 24
"""Size of the proof, in rows and tokens: enough for every weight to take part."""

LARGEST_LOADED = 50_000_000
"""Parameters of the largest model whose logits are compared: 200 MB as float32. The conversion
itself holds one tensor at a time, whatever the model's size."""


def stored_difference(source: HFModel, written: HFModel, dtype: DType) -> list[str]:
    """Names of the tensors whose stored bits are not the source's, cast to `dtype`."""
    wrong = []
    for name in written.weights:
        found = written.weights.raw(name)
        if differing(source.weights.raw(name)[: len(found)], found, NUMPY[dtype]):
            wrong.append(name)
    return wrong


def logits_or_why_not(source: HFModel, written: HFModel, dtype: DType) -> dict[str, Any]:
    """`logits_difference`, unless the engine would need more memory than the conversion itself."""
    count = source.architecture.parameter_count()
    if count <= LARGEST_LOADED:
        return logits_difference(source, written, dtype)
    why = f"{count:,} parameters; up to {LARGEST_LOADED:,} the model is loaded whole and compared"
    print(f"convert: logits are not compared: {why}", flush=True)
    return {"passed": None, "scaled": None, "why": why}


def logits_difference(source: HFModel, written: HFModel, dtype: DType) -> dict[str, Any]:
    """MindSpore's logits of the checkpoint against the float64 reference on what was written.

    One row is padded on the left, so that masks and positions take part.
    """
    # Here, since it brings MindSpore: bad input is refused before those seconds.
    from stages.engine import runtime
    from stages.engine.inference import InferenceModel

    runtime.start("CPU")  # the proof compares in plain fp32, which every machine has
    architecture = written.architecture
    length = min(LENGTH, architecture.max_positions)
    ids_BT = np.random.default_rng(0).integers(
        0, architecture.vocab_size, (BATCH, length), dtype=np.int32
    )
    mask_BT = np.ones(ids_BT.shape, bool)
    mask_BT[0, : length // 3] = False
    engine_BTV = InferenceModel.load(source.directory).logits(ids_BT, mask_BT)
    engine_BTV = engine_BTV[:, :, : architecture.vocab_size]
    reference_BTV = reference_logits(architecture, written.weights, ids_BT, mask_BT)
    difference = compare(reference_BTV, engine_BTV, mask_BT)
    return {
        "passed": difference.within(ALLOWED[dtype]),
        "engines": "mindspore float32 on the checkpoint, numpy float64 on the directory",
        "tokens": int(mask_BT.sum()),
        "max_abs": difference.max_abs,
        "scale": difference.scale,
        "scaled": difference.scaled,
        "threshold": ALLOWED[dtype],
    }
