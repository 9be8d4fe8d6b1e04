"""Where the time of a training step goes, kernel by kernel, by MindSpore's own profiler.

`python -m benchmarks.kernels [--size 6m] [--steps 10] [--out FILE]`: a row a kind of work, beside
the time that the products of the formula would take at the peak of numpy's.
"""

# First: it sets what MindSpore reads when it is imported.
from stages.engine import runtime  # isort: skip

import argparse
import csv
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.training import SIZES, WARM_UP, our_step
from flows.planning import numpy_peak
from stages.engine.mesh import Layout
from stages.pretrain.estimate import Work, flops

PRODUCTS, ATTENTION = "products of weights", "products of attention"
KINDS = {
    "MatMul": PRODUCTS,
    "BatchMatMul": ATTENTION,
    "LogSoftmax": "softmaxes and the loss",
    "SparseSoftmaxCrossEntropyWithLogits": "softmaxes and the loss",
    "Softmax": "softmaxes and the loss",
    "GatherD": "softmaxes and the loss",
    "Transpose": "copies",
    "Slice": "copies",
    "Concat": "copies",
    "Tile": "copies",
    "Gather": "copies",
}
"""Of the kernels outside the optimiser. What is not named works number by number."""


def kind(kernel: str, full_name: str) -> str:
    """The kind of work that a kernel does."""
    if "/optimizer-" in full_name:
        return "AdamW and the gradient's norm"
    if kernel == "MatMul" and ("/norm-Norm/" in full_name or "/rotate-Rotate/" in full_name):
        return "products in norms and rotations"
    return KINDS.get(kernel, "elementwise")


def profiled(step: Any, steps: int) -> tuple[dict[str, float], dict[str, int], float]:
    """Milliseconds and kernels a step by kind of work, and milliseconds of a whole step."""
    from mindspore import Profiler

    with tempfile.TemporaryDirectory() as scratch:
        profiler = Profiler(output_path=scratch, start_profile=False)
        profiler.start()
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        profiler.stop()
        profiler.analyse()
        found = next(Path(scratch).rglob("cpu_op_detail_info_0.csv"))
        kernels = list(csv.DictReader(found.read_text(encoding="utf-8").splitlines()))
    spent: dict[str, float] = {}
    count: dict[str, int] = {}
    for row in kernels:
        which = kind(row["op_type"], row["full_op_name"])
        spent[which] = spent.get(which, 0.0) + float(row["op_total_time(ms)"]) / steps
        count[which] = count.get(which, 0) + int(row["op_occurrences"]) // steps
    return spent, count, statistics.mean(times) * 1e3


def measure(name: str, steps: int) -> dict[str, Any]:
    """The table: milliseconds and share by kind of work."""
    runtime.start("CPU", 0)
    ours = our_step(name, Layout(), 0)
    for _ in range(WARM_UP):
        ours.step()
    peaks = [numpy_peak()]
    spent, count, whole = profiled(ours.step, steps)
    peaks.append(numpy_peak())
    spent["between kernels"] = whole - sum(spent.values())
    shape, sequences, length = SIZES[name]
    needed = flops(Work(shape, Layout(), length, sequences, sequences)) / max(peaks) * 1e3
    rows = [
        {
            "work": which,
            "kernels": count.get(which, 0),
            "milliseconds": round(taken, 1),
            "share": round(taken / whole, 3),
        }
        for which, taken in sorted(spent.items(), key=lambda pair: -pair[1])
    ]
    return {
        "size": name,
        "cores": len(os.sched_getaffinity(0)),
        "steps": steps,
        "load_average": round(os.getloadavg()[0], 2),
        "step_milliseconds": round(whole, 1),
        "floor_milliseconds": round(needed, 1),
        "rows": rows,
    }


def main() -> None:
    """Measure, write the table, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="6m")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("kernels.json"))
    a = parser.parse_args()
    found = measure(a.size, a.steps)
    a.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
