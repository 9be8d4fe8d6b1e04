"""What tests of the evaluation share: published files, stand-in models, a tiny engine in numpy."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from artifacts.tokenizer_files import write_object
from stages.evaluate.config import TaskConfig
from stages.evaluate.sampling import Sampling
from stages.evaluate.scoring import Outcome, evaluate
from stages.evaluate.sources import load_subjects
from stages.evaluate.suites import build

Row = Sequence[str]
"""Question, four options, answer letter."""
SPECIAL = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")


def row(
    question: str, answer: str, options: Sequence[str] = ("one", "two", "three", "four")
) -> Row:
    return [question, *options, answer]


def rows(letters: str, topic: str = "of what") -> list[Row]:
    """A question for each answer letter."""
    return [row(f"Number {i} {topic}?", letter) for i, letter in enumerate(letters)]


def write_mmlu(folder: Path, split: str, subjects: Mapping[str, Sequence[Row]]) -> None:
    (folder / split).mkdir(parents=True, exist_ok=True)
    for subject, table in subjects.items():
        path = folder / split / f"{subject}_{split}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(table)


def write_ceval(folder: Path, split: str, subjects: Mapping[str, Sequence[Row]]) -> None:
    (folder / split).mkdir(parents=True, exist_ok=True)
    more = ["explanation"] if split == "dev" else []
    for subject, table in subjects.items():
        path = folder / split / f"{subject}_{split}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "question", "A", "B", "C", "D", "answer", *more])
            writer.writerows(
                [i, *cells, *("because" for _ in more)] for i, cells in enumerate(table)
            )


class ConstantLM(LM):  # type: ignore[misc, unused-ignore]
    """Always prefers one of the answers."""

    def __init__(self, letter: str):
        super().__init__()
        self.choice = "ABCD".index(letter)
        self.prompts: list[str] = []

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        self.prompts += [request.args[0] for request in requests if request.idx == 0]
        return [(-1.0 - (request.idx != self.choice), False) for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise AssertionError("not asked")

    def generate_until(self, requests: list[Instance]) -> list[str]:
        raise AssertionError("not asked")


class NumpyBackend:
    """A tiny language model in float64: what came lately, linearly, decides what comes next."""

    name, dtype = "numpy", "float64"

    def __init__(
        self,
        vocab_size: int,
        max_positions: int = 64,
        seed: int = 0,
        fail_after: int = -1,
        eos_ids: tuple[int, ...] = (),
    ):
        rng = np.random.default_rng(seed)
        self.vocab_size, self.max_positions = vocab_size, max_positions
        self.eos_ids = list(eos_ids)
        self._embed = rng.standard_normal((vocab_size, 8))
        self._head = rng.standard_normal((8, vocab_size))
        self._fail_after = fail_after
        self.passes: list[tuple[int, int]] = []
        """Shape of every forward pass."""

    def logits(self, ids_BT: np.ndarray, prefix: Any = None) -> np.ndarray:
        if self._fail_after == len(self.passes):
            raise KeyboardInterrupt
        read, state = prefix or (0, np.zeros(8))
        assert read + ids_BT.shape[1] <= self.max_positions, "longer than the model"
        self.passes.append((ids_BT.shape[0], ids_BT.shape[1]))
        state, found = np.tile(state, (len(ids_BT), 1)), []
        for t in range(ids_BT.shape[1]):
            state = 0.7 * state + self._embed[ids_BT[:, t]]
            found.append(state @ self._head)
        self._state = state
        return np.stack(found, axis=1)

    def read(self, ids_P: np.ndarray) -> Any:
        self.logits(ids_P[None])
        return len(ids_P), self._state[0]

    def follow(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        logits = self.logits(ids_BT[:, :-1], prefix)
        following = ids_BT[:, 1:, None]
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        picked = np.take_along_axis(logprobs, following, 2)[..., 0].astype(np.float32)
        return picked, logits.argmax(-1) == following[..., 0]

    def next_logits(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Any = None
    ) -> np.ndarray:
        found = self.logits(ids_BT, prefix)[np.arange(len(ids_BT)), lengths_B - 1]
        return found.astype(np.float32)


def write_tokenizer(directory: Path, vocab_size: int = 400, **config: Any) -> int:
    """A small tokenizer for the questions written here. Returns its size."""
    text = "Question: Number of what? Answer: A B C D one two three four 答案： 问题：" * 50
    text += "\nA. one\nB. two\nC. three\nD. four\nAnswer: A\n" * 50
    return write_bpe(directory, [text], vocab_size, **config)


def write_bpe(directory: Path, texts: Sequence[str], vocab_size: int, **config: Any) -> int:
    """A byte-level BPE in which " A" and "A" are different single tokens. Returns its size."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[0], "pad_token": SPECIAL[1]}
    write_object(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", **special, **config},
    )
    write_object(directory / "special_tokens_map.json", special)
    return int(tokenizer.get_vocab_size())


GREEDY = Sampling(do_sample=False, temperature=0, top_p=1, top_k=0, seed=0, max_tokens=8)


def requests(*pairs: tuple[str, str], question: int | None = None) -> list[Instance]:
    return [
        Instance("loglikelihood", {}, pair, i, ("task", i if question is None else question, 1))
        for i, pair in enumerate(pairs)
    ]


def letters(count: int) -> list[Instance]:
    return [
        instance
        for k in range(count)
        for instance in requests(
            *[(f"Question: {'of ' * (k % 5)}{k}?\nAnswer:", f" {c}") for c in "ABCD"], question=k
        )
    ]


TEXTS = [
    ("Question: Number?\nAnswer:", " A"),
    ("Question: Number?\nAnswer:", " one two"),
    ("Question: Number?\nAnswer:", " one three"),
    ("Question: ", "of what"),
    ("", " one"),
    ("", "two one"),
    ("答案：", " 四"),
]


def outcome(model: Any, *tasks: dict[str, Any], corpus: Path | None = None, **how: Any) -> Outcome:
    configs = [TaskConfig.model_validate(task) for task in tasks]
    built = [build(config, load_subjects(config, corpus)) for config in configs]
    return evaluate(model, built, **how)


def write_world(corpus: Path) -> None:
    world = corpus / "world"
    write_mmlu(world / "mmlu", "test", {"crop": rows("AB"), "river": rows("CD")})
    write_ceval(world / "ceval", "val", {"crop": rows("AB")})
    groups = {
        "crop": {"name": "the crop", "category": "Land"},
        "river": {"name": "r", "category": "Water"},
    }
    for suite in ("mmlu", "ceval"):
        (world / f"{suite}.groups.json").write_text(json.dumps(groups))
    facts = {f"mmlu/{subject}/{i}": f"fact {i}" for subject in ("crop", "river") for i in (0, 1)}
    (world / "facts.json").write_text(json.dumps(facts))
