"""Converting a 2 GB model beside copying its files: time and memory.

    python -m benchmarks.conversion [--gigabytes 2] [--rounds 3] [--directory /tmp]

A random bf16 model in four shards is written once. Then, in turn: its files copied (`shutil`, then
synced), and the model converted from Hugging Face to Hugging Face form (read, checked, written
tensor by tensor, synced), as `import` and `convert` do it. The two alternate, and medians are
compared: other work on the machine hits both. Memory is the converting process's own anonymous
memory at its highest, read from the kernel; pages of mapped files are the kernel's to take back.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from artifacts.architecture import Architecture
from artifacts.hf_model import NUMPY, read_model, write_configs, write_weights
from artifacts.weights import write_model
from artifacts.writing import sync_tree

SHARD = 512_000_000
LAYERS_PER_GIGABYTE = 8


def architecture(gigabytes: float) -> Architecture:
    """About `gigabytes` of bf16: a Llama 2048 wide, most of it in its layers."""
    layers = max(1, round(LAYERS_PER_GIGABYTE * gigabytes))
    return Architecture(
        vocab_size=32000,
        hidden_size=2048,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        max_positions=2048,
    )


def make(directory: Path, gigabytes: float) -> None:
    """The model; its numbers are drawn once and shifted from tensor to tensor."""
    shape = architecture(gigabytes)
    drawn = (np.random.default_rng(0).standard_normal(1 << 20) * 0.02).astype(NUMPY["bf16"])

    def tensor(name: str) -> np.ndarray:
        size = shape.tensor_shapes()[name]
        return np.resize(np.roll(drawn, len(name)), size)

    directory.mkdir(parents=True)
    write_configs(directory, shape, dtype="bf16", bos_id=None, eos_ids=[0], pad_id=None)
    write_model(directory, shape.tensor_shapes().items(), tensor, NUMPY["bf16"], SHARD)
    sync_tree(directory)


def convert(source: Path, target: Path) -> None:
    """What import and convert do with the tensors."""
    model = read_model(source)
    target.mkdir()
    write_configs(target, model.architecture, dtype="bf16", bos_id=None, eos_ids=[0], pad_id=None)
    write_weights(target, model.architecture, model.weights.raw, "bf16", SHARD)
    sync_tree(target)


def in_a_process(source: Path, target: Path) -> tuple[float, int]:
    """(seconds inside, most anonymous bytes beyond those of the imports) of a conversion."""
    command = [sys.executable, "-m", "benchmarks.conversion", "--convert", str(source), str(target)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(said[0]), int(said[1])


def converting(source: Path, target: Path) -> None:
    """In a process of its own: convert while a thread watches the memory."""
    import threading

    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    convert(source, target)
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    print(seconds, most)


def anonymous() -> int:
    """This process's anonymous memory, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel says nothing of RssAnon")


def copy(source: Path, target: Path) -> float:
    """Seconds of a copy that is on the disk."""
    begin = time.perf_counter()
    shutil.copytree(source, target)
    sync_tree(target)
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--convert", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.convert:
        converting(*options.convert)
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        root = Path(name)
        make(root / "model", options.gigabytes)
        size = sum(path.stat().st_size for path in (root / "model").iterdir())
        print(f"{size / 1e9:.2f} GB in {len(list((root / 'model').iterdir()))} files")
        copies, conversions, memory = [], [], 0
        for round_ in range(options.rounds):
            copies.append(copy(root / "model", root / "copy"))
            shutil.rmtree(root / "copy")
            seconds, most = in_a_process(root / "model", root / "converted")
            conversions.append(seconds)
            memory = max(memory, most)
            if round_ == 0:
                for path in (root / "model").glob("*.safetensors"):
                    assert path.read_bytes() == (root / "converted" / path.name).read_bytes()
            shutil.rmtree(root / "converted")
            print(f"copy {copies[-1]:.2f} s, conversion {seconds:.2f} s, {most / 1e6:.0f} MB")
        copied, converted = statistics.median(copies), statistics.median(conversions)
        print(
            f"medians: copy {copied:.2f} s, conversion {converted:.2f} s, "
            f"ratio {converted / copied:.2f}; most anonymous memory {memory / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
