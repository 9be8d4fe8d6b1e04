"""5-shot MMLU against lm-eval's own `hf` model: the same directory, items and threads, in one run.

    .venv-peers/bin/python -m benchmarks.evaluation --mmlu mmlu/data

The model is random, since speed and agreement do not depend on what it knows; its tokenizer is
trained on the questions. The sides take turns, and the medians of their items a second are
compared. Loading and MindSpore's compiling (once, in the first round) are shown apart.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the rounds and print a table."""
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # read when the libraries load

    import numpy as np
    import torch
    from lm_eval.models.huggingface import HFLM

    from stages.evaluate import backends
    from stages.evaluate.lm import EngineLM
    from stages.evaluate.text import TextCodec
    from tests.evaluation import GREEDY, write_bpe
    from tests.tiny_models import random_weights, tiny, write_hf

    torch.set_num_threads(arguments.threads)
    work = Path(tempfile.mkdtemp(prefix="mindcycle-benchmark-"))
    asked, texts = _requests(arguments.mmlu, arguments.subjects, arguments.questions)
    size = write_bpe(work / "tokenizer", texts, arguments.vocab)
    architecture = tiny(
        "llama",
        vocab_size=size,
        hidden_size=arguments.hidden,
        layers=arguments.layers,
        heads=arguments.hidden // 64,
        kv_heads=max(1, arguments.hidden // 256),
        head_dim=64,
        intermediate_size=arguments.hidden * 3,
        max_positions=4096,
    )
    write_hf(work / "model", architecture, random_weights(architecture, 5))
    write_bpe(work / "model", texts, arguments.vocab)
    sides: dict[str, Any] = {
        "lm-eval hf": HFLM(
            pretrained=str(work / "model"),
            device="cpu",
            dtype="float32",
            batch_size=arguments.batch,
        )
    }
    for kind, directory in _directories(work):
        backend = backends.load(kind, directory, None, "CPU", arguments.batch)
        codec = TextCodec(directory)
        sides[f"MindCycle, {backend.name}"] = EngineLM(backend, codec, GREEDY, arguments.batch)

    lengths = [len(ids) for ids in TextCodec(work / "model").encode([r.args[0] for r in asked])]
    items = len(asked) // 4
    print(
        f"{items} items of {arguments.subjects} subjects, {np.mean(lengths):.0f} tokens each; "
        f"{architecture.parameter_count() / 1e6:.0f}M parameters; {arguments.threads} threads; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    rates: dict[str, list[float]] = {name: [] for name in sides}
    answers: dict[str, Any] = {}
    for turn in range(arguments.rounds + 1):
        for name, model in sides.items():
            begin = time.perf_counter()
            found = model.loglikelihood(asked, disable_tqdm=True)
            seconds = time.perf_counter() - begin
            answers[name] = np.array([logprob for logprob, _ in found]).reshape(-1, 4)
            print(f"round {turn}  {name:24}  {items / seconds:8.2f} items/s", flush=True)
            if turn:  # the first one warms up
                rates[name].append(items / seconds)
    theirs = statistics.median(rates["lm-eval hf"])
    print("\n| | items/s | times | largest difference | other choices |\n|---|---|---|---|---|")
    expected = answers["lm-eval hf"]
    for name, found in answers.items():
        rate = statistics.median(rates[name])
        other = int((found.argmax(1) != expected.argmax(1)).sum())
        print(
            f"| {name} | {rate:.2f} | {rate / theirs:.1f} "
            f"| {np.abs(found - expected).max():.1e} | {other} of {items} |"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mmlu", type=Path, required=True, help="folder with dev and test")
    parser.add_argument("--subjects", type=int, default=4, help="spread over the alphabet")
    parser.add_argument("--questions", type=int, default=48, help="of each subject")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _requests(folder: Path, subjects: int, questions: int) -> tuple[list[Any], list[str]]:
    """lm-eval's requests for the first questions of some subjects, and their prompts."""
    from stages.evaluate.config import TaskConfig
    from stages.evaluate.sources import load_subjects
    from stages.evaluate.suites import build

    everything = TaskConfig.model_validate(
        {"suite": "mmlu", "data": "local", "path": folder, "num_fewshot": 5, "limit": questions}
    )
    found = load_subjects(everything, None)
    built = build(everything, found[:: len(found) // subjects][:subjects])
    asked = []
    for task in built.tasks.values():
        task.build_all_requests()
        asked += task.instances
    return asked, sorted({request.args[0] for request in asked})


def _directories(work: Path) -> list[tuple[str, Path]]:
    """The model, and the bundle made from it."""
    from artifacts.hf_model import read_model
    from artifacts.tokenizer_files import read_tokenizer
    from stages.export.bundle import write_bundle

    (work / "bundle").mkdir()
    write_bundle(work / "bundle", read_model(work / "model"), read_tokenizer(work / "model"), {})
    return [("hf-model", work / "model"), ("onnx-bundle", work / "bundle")]


if __name__ == "__main__":
    main()
