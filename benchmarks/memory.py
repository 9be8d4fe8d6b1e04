"""The memory that `mindcycle plan` foretells, beside what a training process takes.

`python -m benchmarks.memory [--out FILE]`: one process a shape; measured is the peak of its
resident memory less that of a process with a model of next to nothing, which the libraries and the
compiled graph take whatever the size.
"""

# First: it sets what MindSpore reads when it is imported.
from stages.engine import runtime  # isort: skip

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.architecture import Architecture
from stages.engine.mesh import Layout
from stages.pretrain.estimate import Work, memory

SHAPES: dict[str, dict[str, int]] = {
    "weights": {"V": 4096, "D": 1024, "L": 4, "H": 8, "I": 2816, "T": 16, "B": 1},
    "activations": {"V": 512, "D": 256, "L": 4, "H": 4, "I": 704, "T": 512, "B": 8},
    "logits": {"V": 16384, "D": 256, "L": 4, "H": 4, "I": 704, "T": 128, "B": 16},
    "mixed": {"V": 8192, "D": 512, "L": 4, "H": 8, "I": 1408, "T": 256, "B": 4},
    "accumulated": {"V": 4096, "D": 1024, "L": 4, "H": 8, "I": 2816, "T": 16, "B": 1, "M": 2},
    "recomputed": {"V": 512, "D": 256, "L": 8, "H": 4, "I": 704, "T": 512, "B": 8, "R": 1},
}
NOTHING = {"V": 64, "D": 16, "L": 4, "H": 2, "I": 32, "T": 16, "B": 2}
TOLERANCE = 0.15


def work_of(s: dict[str, int]) -> Work:
    """V vocabulary, D width, L layers, H heads, I inner width, T tokens, B sequences at once, M
    micro-batches, R computed again."""
    shape = Architecture(
        vocab_size=s["V"],
        hidden_size=s["D"],
        layers=s["L"],
        heads=s["H"],
        kv_heads=s["H"],
        head_dim=s["D"] // s["H"],
        intermediate_size=s["I"],
        max_positions=s["T"],
    )
    many = s.get("M", 1)
    return Work(shape, Layout(), s["T"], s["B"] * many, s["B"], recompute=bool(s.get("R")))


def peak(s: dict[str, int]) -> int:
    """Bytes of resident memory that a process of its own took at most in three steps."""
    command = [sys.executable, "-m", "benchmarks.memory", "--one", json.dumps(s)]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    )


def train(s: dict[str, int]) -> int:
    """Three steps here; the peak in bytes."""
    from stages.engine.groups import data_mesh
    from stages.engine.model import Decoder
    from stages.engine.settings import OptimizerConfig
    from stages.engine.trainers import make_trainer
    from stages.engine.training import Batch

    runtime.start("CPU", 0)
    work = work_of(s)
    decoder = Decoder(work.shape)
    trainer = make_trainer(
        work.shape, decoder, OptimizerConfig(), data_mesh(1), None, work.recompute
    )
    rng = np.random.default_rng(0)
    size = (work.micro_size, work.sequence_length)
    for _ in range(3):
        ids = [rng.integers(0, s["V"], size).astype(np.int32) for _ in range(work.micro_batches)]
        trainer.step([Batch(one, one) for one in ids], 1e-3)
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def compare() -> list[dict[str, Any]]:
    """A row a shape: foretold and measured bytes, and their ratio."""
    base = peak(NOTHING)
    rows = []
    for name, s in SHAPES.items():
        foretold, measured = memory(work_of(s)).total, peak(s) - base
        rows.append(
            {
                "shape": name,
                **s,
                "foretold_bytes": foretold,
                "measured_bytes": measured,
                "ratio": round(foretold / measured, 3),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Compare all shapes; exit code 1 if one is further off than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/memory.json"))
    arguments = parser.parse_args()
    if arguments.one:
        print(train(json.loads(arguments.one)), flush=True)
        os._exit(0)
    rows = compare()
    arguments.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    if any(abs(row["ratio"] - 1) > TOLERANCE for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
