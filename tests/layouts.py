"""Training in layouts, beside one process: what each rank of a test's launch runs.

`python -m tests.layouts CASES OUT`: CASES is a JSON list of cases, OUT a directory that gets one
`NAME.npz` a case, with the losses, the gradients of the first step and the weights, whole and by
Hugging Face name.
"""

# First: it sets what MindSpore reads when it is imported.
from stages.engine import runtime  # isort: skip

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.architecture import Architecture
from stages.engine import causal, parallel, shards
from stages.engine.groups import ALONE, Mesh, mesh, summed
from stages.engine.mesh import Layout, Place, is_divided
from stages.engine.precision import LossScale
from stages.engine.settings import OptimizerConfig
from stages.engine.trainers import make_trainer
from stages.engine.training import Batch
from tests.tiny_models import random_weights, tiny

LENGTH, SEQUENCES = 16, 8
WHOLE = causal.HALVED_FROM
OPTIMIZER = OptimizerConfig(learning_rate=4e-3, beta2=0.98, clip_norm=0.5)


def shape_of(case: dict[str, Any]) -> Architecture:
    """The case's model: four layers, grouped queries unless it says otherwise."""
    sizes = {"vocab_size": 64, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 4}
    return tiny(case.get("family", "llama"), **(sizes | case.get("shape", {})))


def batch_of(step: int, samples: range) -> Batch:
    """Rows that depend on their number alone, each with a mask of its own."""
    ids, labels = [], []
    for sample in samples:
        rng = np.random.default_rng([step, sample])
        row = (rng.integers(0, 64) + 3 * np.arange(LENGTH + 1)) % 64
        label = row[1:].copy()
        label[rng.random(LENGTH) < 0.1 * sample] = -100
        ids.append(row[:-1])
        labels.append(label)
    return Batch(np.array(ids, np.int32), np.array(labels, np.int32))


def train(case: dict[str, Any], found: Mesh) -> dict[str, np.ndarray]:
    """Losses, gradients of the first step and weights; whole on every process."""
    shape, place = shape_of(case), found.place
    causal.HALVED_FROM = case.get("halved_from", WHOLE)
    precision = case.get("precision", "fp32")
    decoder = shards.make_decoder(shape, found, precision)
    shards.load(decoder, shape, place, random_weights(shape))
    scale = None if precision == "fp32" else LossScale()
    recompute = case.get("recompute", False)
    trainer = make_trainer(shape, decoder, OPTIMIZER, found, scale, recompute)
    micro = case.get("micro", 1)
    out: dict[str, np.ndarray] = {}
    losses, norms = [], []
    for step in range(case["steps"]):
        mine = range(place.data * micro, SEQUENCES, place.layout.data * micro)
        batches = [batch_of(step, range(i, i + micro)) for i in mine]
        if step == 0 and case.get("gradients"):
            trainer.accumulate_all(batches)
            gradients = trainer.accumulated()
            out |= {f"gradient {n}": v for n, v in whole(shape, found, gradients, True).items()}
            trainer.drop()
        result = trainer.step(batches, 4e-3)
        losses.append(result.loss)
        norms.append(result.gradient_norm)
    out["losses"], out["norms"] = np.array(losses), np.array(norms)
    held = {name: p.asnumpy() for name, p in decoder.parameters_and_names()}
    out |= {f"weight {n}": v for n, v in whole(shape, found, held, False).items()}
    both = 2 // place.layout.data
    evaluated = trainer.evaluate(
        [batch_of(99, range(place.data + i, place.data + i + 1)) for i in range(both)]
    )
    out["evaluated"] = np.array(evaluated)
    return out


def whole(
    shape: Architecture, found: Mesh, values: dict[str, np.ndarray], is_gradient: bool
) -> dict[str, np.ndarray]:
    """The whole model's tensors from all processes' parts, by eager sums."""
    place = found.place
    mine = {piece.name: (piece.index, v) for piece, v in shards.to_hf(shape, place, values)}
    result = {}
    for name, size in shape.tensor_shapes().items():
        full = np.zeros(size, np.float32)
        # A tensor that several hold whole comes from the first of them.
        if name in mine and (is_divided(name) or place.tensor == 0):
            tied_copy = name == "model.embed_tokens.weight" and not place.first
            if is_gradient or not tied_copy:
                full[mine[name][0]] = mine[name][1]
        full = summed(full, found.model)
        result[name] = summed(full, found.data) if is_gradient else full
    return result


def main(cases: list[dict[str, Any]], out: Path) -> None:
    """Run every case; rank 0 writes."""
    runtime.start("CPU", 0)
    size = max(Layout(**case["layout"]).size for case in cases)
    rank = 0
    if size > 1:
        rank = parallel.join(size).rank
    for case in cases:
        layout = Layout(**case["layout"])
        assert layout.size == size, "one launch has one size"
        found = ALONE if size == 1 else mesh(Place(layout, rank))
        result = train(case, found)
        if rank == 0:
            np.savez(out / f"{case['name']}.npz", **result)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)
