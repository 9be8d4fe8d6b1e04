"""A training step of ours beside transformers + torch, and beside what the products alone take.

`python -m benchmarks.training [--size 6m] [--rounds 7] [--threads 2] [--out FILE]`, where torch and
transformers are installed. One run, the sides in turn, each in a process of its own that waits
while the other works; the median of the rounds after a warm-up. `--layouts` measures our own
layouts against one process instead. All of them share the machine's cores, so what a layout takes
longer than one process is its overhead; with more processes than cores, part of that is sharing.
"""

# First: it sets what MindSpore reads when it is imported.
from stages.engine import runtime  # isort: skip

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from artifacts.architecture import Architecture
from flows.planning import numpy_peak
from stages.engine.mesh import Layout, Place
from stages.engine.parallel import join, launch
from stages.engine.training import StepResult
from stages.pretrain.estimate import Work, flops


def _size(
    vocab: int, hidden: int, layers: int, heads: int, inner: int, length: int
) -> Architecture:
    return Architecture(
        vocab_size=vocab,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=inner,
        max_positions=length,
        tied_head=False,
    )


SIZES = {
    "tiny": (_size(256, 64, 2, 4, 176, 32), 4, 32),
    "6m": (_size(4096, 256, 4, 8, 1024, 256), 8, 256),
    "25m": (_size(8192, 512, 6, 8, 1376, 256), 8, 256),
}
"""Shape, sequences a step, tokens a sequence."""
WARM_UP = 8
"""Steps before the first that counts: how kernels use threads changes over the first ones."""
LAYOUTS = {
    "one": Layout(),
    "data 2": Layout(data=2),
    "data 2, zero": Layout(data=2, zero=1),
    "tensor 2": Layout(tensor=2),
    "pipeline 2": Layout(pipeline=2),
    "data 2, tensor 2": Layout(data=2, tensor=2),
    "pipeline 4": Layout(pipeline=4),
}


def rows(shape: Architecture, sequences: int, length: int) -> np.ndarray:
    """The tokens that every side trains on, [B, T + 1]."""
    rng = np.random.default_rng(0)
    return rng.integers(0, shape.vocab_size, (sequences, length + 1)).astype(np.int32)


@dataclass(frozen=True)
class Ours:
    """Our step, and what its collectives take alone."""

    step: Callable[[], StepResult]
    collective_seconds: Callable[[], float]


def our_step(name: str, layout: Layout, rank: int) -> Ours:
    """One of our steps, of this rank in a layout."""
    from stages.engine import shards
    from stages.engine.groups import ALONE, mesh
    from stages.engine.initial import initial_tensors
    from stages.engine.settings import OptimizerConfig
    from stages.engine.trainers import make_trainer
    from stages.engine.training import Batch

    shape, sequences, length = SIZES[name]
    found = ALONE if layout.size == 1 else mesh(Place(layout, rank))
    decoder = shards.make_decoder(shape, found)
    drawn = dict(initial_tensors(shape, 0, std=0.02, embedding_std=0.02))
    shards.load(decoder, shape, found.place, drawn)
    trainer = make_trainer(shape, decoder, OptimizerConfig(), found)
    share = sequences // layout.data
    micro = share if layout.pipeline == 1 else max(share // (2 * layout.pipeline), 1)
    mine = rows(shape, sequences, length)[found.place.data * share :][:share]
    batches = [
        Batch(mine[i : i + micro, :-1], mine[i : i + micro, 1:]) for i in range(0, share, micro)
    ]
    return Ours(
        lambda: trainer.step(batches, 1e-4),
        lambda: trainer.collective_seconds(micro * length, len(batches)),
    )


def their_step(name: str, threads: int) -> Callable[[], float]:
    """The same with transformers' Llama and torch's fused AdamW."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape, sequences, length = SIZES[name]
    config = shape.to_hf(dtype="float32", bos_id=None, eos_id=0, pad_id=None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    tokens = torch.tensor(rows(shape, sequences, length), dtype=torch.long)
    ids, labels = tokens[:, :-1], tokens[:, 1:]

    def step() -> float:
        optimizer.zero_grad()
        logits = model(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.item())

    return step


class Side:
    """A process that makes a step whenever it is told to."""

    WAITING: ClassVar = {"torch": {"GOMP_SPINCOUNT": "300000"}}
    """How threads wait for work: torch as it is by default, ours as `runtime` says."""

    def __init__(self, name: str, side: str, threads: int):
        command = [sys.executable, "-m", "benchmarks.training", "--size", name]
        self.process = subprocess.Popen(
            [*command, "--side", side, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)} | self.WAITING.get(side, {}),
        )
        self.ask("start")

    def ask(self, what: str) -> float:
        """Seconds that it took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("took "):
            if not line:
                raise RuntimeError(f"a side ended with code {self.process.wait()}")
        return float(line.split()[1])

    def end(self) -> None:
        """No more."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def answer(name: str, side: str, threads: int) -> None:
    """The side's process: a step, or the peak, for each line of standard input."""
    if side == "ours":
        runtime.start("CPU", 0)
        ours = our_step(name, Layout(), 0)
        step: Callable[[], float] = lambda: ours.step().loss  # noqa: E731
    elif side == "torch":
        step = their_step(name, threads)
    else:
        step = numpy_peak
    for line in sys.stdin:
        begin = time.perf_counter()
        found = step() if line.strip() != "start" else 0.0
        took = found if side == "peak" else time.perf_counter() - begin
        print(f"took {took}", flush=True)


def compare(name: str, rounds: int, threads: int) -> dict[str, Any]:
    """Both sides and the peak in turn: medians, and ratios, which load changes less."""
    shape, sequences, length = SIZES[name]
    work = Work(shape, Layout(), length, sequences, sequences)
    sides = {side: Side(name, side, threads) for side in ("ours", "torch", "peak")}
    for side in ("ours", "torch"):
        for _ in range(WARM_UP):
            sides[side].ask("step")
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, process in sides.items():
            times[side].append(process.ask("step"))
    for process in sides.values():
        process.end()
    ours, torch = (statistics.median(times[side]) for side in ("ours", "torch"))
    floor = flops(work) / statistics.median(times["peak"])
    tokens = sequences * length
    return {
        "size": name,
        "parameters": shape.parameter_count(),
        "threads": threads,
        "rounds": rounds,
        "load_average": round(os.getloadavg()[0], 2),
        "ours_tokens_per_second": round(tokens / ours, 1),
        "torch_tokens_per_second": round(tokens / torch, 1),
        "floor_tokens_per_second": round(tokens / floor, 1),
        "ours_to_torch": round(torch / ours, 3),
        "ours_to_floor": round(floor / ours, 3),
        "seconds": {side: [round(one, 4) for one in times[side]] for side in ("ours", "torch")},
    }


def layouts(name: str, rounds: int) -> dict[str, Any]:
    """A row a layout: tokens/s, and how much longer a step takes than in one process."""
    shape, sequences, length = SIZES[name]
    cores = len(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for title, layout in LAYOUTS.items():
            threads = max(cores // layout.size, 1)
            row = measure_layout(name, title, rounds, threads, Path(scratch))
            first = rows[0]["seconds"] if rows else row["seconds"]
            rows.append(
                {
                    "layout": title,
                    "processes": layout.size,
                    "threads_each": threads,
                    "tokens_per_second": round(sequences * length / row["seconds"], 1),
                    "overhead": round(row["seconds"] / first - 1, 3),
                    **row,
                }
            )
            print(rows[-1], flush=True)
    return {
        "size": name,
        "parameters": shape.parameter_count(),
        "cores": cores,
        "rounds": rounds,
        "load_average": round(os.getloadavg()[0], 2),
        "rows": rows,
    }


def measure_layout(
    name: str, title: str, rounds: int, threads: int, scratch: Path
) -> dict[str, float]:
    """Medians of a step in a layout, in seconds; rank 0 tells."""
    out = scratch / "seconds.json"
    command = [sys.executable, "-m", "benchmarks.training", "--size", name, "--layout", title]
    command += ["--rounds", str(rounds), "--out", str(out)]
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if LAYOUTS[title].size == 1:
        subprocess.run(command, check=True)
    else:
        launch(command, LAYOUTS[title].size, scratch / "ranks")
    found: dict[str, float] = json.loads(out.read_text())
    return found


def run_rank(name: str, title: str, rounds: int, out: Path) -> None:
    """One rank of a layout."""
    runtime.start("CPU", 0)
    layout = LAYOUTS[title]
    rank = 0 if layout.size == 1 else join(layout.size).rank
    ours = our_step(name, layout, rank)
    times, exchanges = [], []
    for i in range(WARM_UP + rounds):
        begin = time.perf_counter()
        result = ours.step()
        if i >= WARM_UP:
            times.append(time.perf_counter() - begin)
            exchanges.append(result.exchange_seconds)
    found = {
        "seconds": round(statistics.median(times), 4),
        "collectives_seconds": round(ours.collective_seconds(), 4),
        "exchanges_seconds": round(statistics.median(exchanges), 4),
    }
    if rank == 0:
        out.write_text(json.dumps(found))


def main() -> None:
    """Compare, write the table, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="6m")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("training.json"))
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--layout", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.side:
        answer(a.size, a.side, a.threads)
        sys.stdout.flush()
        os._exit(0)
    if a.layout:
        run_rank(a.size, a.layout, a.rounds, a.out)
        os._exit(0)
    found = layouts(a.size, a.rounds) if a.layouts else compare(a.size, a.rounds, a.threads)
    a.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
