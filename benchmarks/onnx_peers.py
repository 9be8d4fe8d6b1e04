"""Decoding and exporting beside transformers, onnxruntime-genai's Model Builder and optimum.

    .venv-peers/bin/python -m benchmarks.onnx_peers --size 26m --optimum other/bin/python

A random Llama is written, exported by us and by the others, and decoded by each engine in turn, one
thread, several rounds. Speed is tokens per second of CPU time, which other work on the machine
changes little; compare the ratios. Prints JSON.

optimum-onnx 0.1 takes transformers 4, so it needs an environment of its own, whose interpreter is
named: pip install optimum-onnx onnxruntime. Its ORTModelForCausalLM then also opens our bundle.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Process
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.architecture import Architecture
from artifacts.hf_model import write_configs, write_weights
from artifacts.json_files import read_object, write_object
from artifacts.onnx_bundle import GENAI_CONFIG
from tests.tiny_models import write_tokenizer

SIZES = {
    "26m": {"hidden_size": 512, "layers": 8, "heads": 8, "kv_heads": 4, "vocab_size": 8000}
    | {"intermediate_size": 1280},
    "125m": {"hidden_size": 768, "layers": 16, "heads": 12, "kv_heads": 4, "vocab_size": 32000}
    | {"intermediate_size": 2048},
}
PROMPT, NEW = 192, 128
OURS = [
    ("plain-fp32", "plain", "fp32", "32"),
    ("microsoft-fp32", "microsoft", "fp32", "32"),
    ("microsoft-int4", "microsoft", "int4", "32"),
    ("microsoft-int4-64", "microsoft", "int4", "64"),
]
"""Name, operators, precision, and how many weights share a scale in int4; in the Model Builder's
they are 32, whatever its int4_block_size says."""
EXPORTS = 5
"""How often each export is measured."""
EXPORT = """
import sys
from pathlib import Path
from artifacts.hf_model import read_model
from artifacts.tokenizer_files import read_tokenizer
from stages.export.bundle import write_bundle
source, out, operators, precision, block = sys.argv[1:]
Path(out).mkdir()
model, tokenizer = read_model(Path(source)), read_tokenizer(Path(source))
write_bundle(Path(out), model, tokenizer, {}, operators, precision, int4_block=int(block))
"""
IN_OPTIMUM = """
import json, sys
import torch
from optimum.onnxruntime import ORTModelForCausalLM
from transformers import AutoModelForCausalLM
source, bundle = sys.argv[1:]
ours = ORTModelForCausalLM.from_pretrained(bundle)
theirs = AutoModelForCausalLM.from_pretrained(source).eval()
ids, mask = torch.randint(4, 260, (2, 24)), torch.ones(2, 24, dtype=torch.long)
mask[0, :9] = 0
given = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
with torch.no_grad():
    apart = ours(ids, **given).logits - theirs(ids, **given).logits
    settings = dict(attention_mask=mask, max_new_tokens=32, do_sample=False, pad_token_id=1)
    same = torch.equal(ours.generate(ids, **settings), theirs.generate(ids, **settings))
print(json.dumps({"max_abs": float(apart[mask.bool()].abs().max()), "same greedy text": same}))
"""
"""Our bundle in optimum beside transformers, a batch of two prompts, one padded on the left."""
Run = Callable[[], tuple[float, float]]
"""CPU seconds of reading the prompt, and of NEW tokens after it."""


def architecture(size: str) -> Architecture:
    """The Llama of this size."""
    return Architecture(head_dim=64, max_positions=1024, **SIZES[size])  # type: ignore[arg-type]


def write_model(directory: Path, size: str) -> None:
    """Random weights as a Hugging Face directory, written tensor by tensor."""
    a = architecture(size)
    directory.mkdir()
    rng = np.random.default_rng(0)

    def tensor(name: str) -> np.ndarray:
        shape = a.tensor_shapes()[name]
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))

    write_configs(directory, a, dtype="fp32", bos_id=None, eos_ids=[0], pad_id=1)
    write_weights(directory, a, tensor, "fp32", 1 << 30)
    write_tokenizer(directory)


def measured(command: list[str], made: Path) -> dict[str, float]:
    """Run a command that makes a directory, several times; its CPU seconds and peak memory in MB.

    Medians: what the system does with written pages meanwhile is half of one export's time.
    """
    seconds, peaks = [], []
    for _ in range(EXPORTS):
        shutil.rmtree(made, ignore_errors=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(said.decode()[-2000:])
        seconds.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss / 1024)
    return {
        "cpu_seconds": round(statistics.median(seconds), 2),
        "peak_mb": round(statistics.median(peaks)),
    }


def exports(source: Path, folder: Path, optimum: str | None) -> dict[str, dict[str, float]]:
    """Export in every way; the bundles' directories are `folder`/NAME."""
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
    found = {}
    for name, *kind in OURS:
        command = [sys.executable, "-c", EXPORT, str(source), str(folder / name), *kind]
        found[name] = measured(command, folder / name)
    if optimum is not None:
        task = ["--task", "text-generation-with-past", "--no-post-process"]
        command = [optimum, "-m", "optimum.exporters.onnx", "--model", str(source), *task]
        made = folder / "optimum"
        found["optimum-fp32"] = measured([*command, str(made)], made)
    for precision in ("fp32", "int4"):
        name = f"builder-{precision}"
        cache = str(folder / "cache")
        command = [*builder, "-o", str(folder / name), "-p", precision, "-e", "cpu", "-c", cache]
        found[name] = measured(command, folder / name)
    return found


def transformers_run(source: Path, prompt: list[int]) -> Run:
    """transformers' generate, float32, sdpa."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="float32").eval()
    ids = torch.tensor([prompt])

    def generate(tokens: int) -> float:
        begin = time.process_time()
        settings = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False}
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=1, **settings)
        return time.process_time() - begin

    def run() -> tuple[float, float]:
        first = generate(1)
        return first, generate(NEW + 1) - first

    return run


def our_run(bundle: Path, prompt: list[int]) -> Run:
    """Our own loop over onnxruntime, as `mindcycle generate` has it."""
    from artifacts.onnx_bundle import OnnxModel
    from serving.batch import Batch, Prefill

    model = OnnxModel(bundle, threads=1)
    ids = np.asarray(prompt)

    def run() -> tuple[float, float]:
        begin = time.process_time()
        prefill = Prefill(ids, None)
        while (logits_V := prefill.step(model)) is None:
            pass
        first = time.process_time()
        batch = Batch(None)
        batch.join(prefill)
        for _ in range(NEW):
            logits_V = batch.step(model, logits_V.argmax(keepdims=True))[0]
        return first - begin, time.process_time() - first

    return run


def genai_run(bundle: Path, prompt: list[int]) -> Run:
    """onnxruntime-genai, greedy."""
    import onnxruntime_genai as og

    config = read_object(bundle / GENAI_CONFIG)
    options = config["model"]["decoder"]["session_options"]
    options |= {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
    write_object(bundle / GENAI_CONFIG, config)
    model = og.Model(str(bundle))

    def run() -> tuple[float, float]:
        params = og.GeneratorParams(model)
        length = PROMPT + NEW + 1
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = og.Generator(model, params)
        begin = time.process_time()
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        first = time.process_time()
        for _ in range(NEW):
            generator.generate_next_token()
        return first - begin, time.process_time() - first

    return run


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="26m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimum", metavar="PYTHON", help="an interpreter that has optimum-onnx")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        said: dict[str, Any] = {"parameters": architecture(given.size).parameter_count()}
        # In a process of its own: its memory would count as that of the exports started from here.
        writer = Process(target=write_model, args=(folder / "hf", given.size))
        writer.start()
        writer.join()
        said["export"] = exports(folder / "hf", folder, given.optimum)
        if given.optimum is not None:
            command = [given.optimum, "-c", IN_OPTIMUM, folder / "hf", folder / "plain-fp32"]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            said["our bundle in optimum"] = json.loads(answer.stdout.splitlines()[-1])
        prompt = np.random.default_rng(1).integers(4, 260, PROMPT).tolist()
        runs = {
            "transformers fp32": transformers_run(folder / "hf", prompt),
            "ours plain fp32": our_run(folder / "plain-fp32", prompt),
            "ours microsoft fp32, genai": genai_run(folder / "microsoft-fp32", prompt),
            "builder fp32, genai": genai_run(folder / "builder-fp32", prompt),
            "ours microsoft int4, genai": genai_run(folder / "microsoft-int4", prompt),
            "builder int4, genai": genai_run(folder / "builder-int4", prompt),
            "ours microsoft int4 in 64, genai": genai_run(folder / "microsoft-int4-64", prompt),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for round_ in range(given.rounds + 1):
            for name, run in runs.items():
                found = run()
                if round_:  # the first one warms up
                    times[name].append(found)
        said["tokens_per_cpu_second"] = {
            name: {
                "prefill": round(PROMPT / statistics.median(first for first, _ in found)),
                "decode": round(NEW / statistics.median(rest for _, rest in found), 1),
            }
            for name, found in times.items()
        }
        decode = {name: each["decode"] for name, each in said["tokens_per_cpu_second"].items()}
        said["ratios"] = {
            "fp32 decode, ours to transformers": decode["ours plain fp32"]
            / decode["transformers fp32"],
            "int4 decode, ours to the builder": decode["ours microsoft int4, genai"]
            / decode["builder int4, genai"],
            "int4 decode, ours in 64 to the builder in 32": decode[
                "ours microsoft int4 in 64, genai"
            ]
            / decode["builder int4, genai"],
            "fp32 decode, ours to the builder": decode["ours microsoft fp32, genai"]
            / decode["builder fp32, genai"],
        }
    print(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
