"""The corpus stage: text in, tokenizer and token shards out. Reads every source twice."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from artifacts.corpus import CorpusInfo, CorpusWriter
from artifacts.errors import BadInput
from stages.corpus.config import CorpusConfig, WorldSource
from stages.corpus.documents import documents
from stages.corpus.tokenizer import (
    CorpusTokenizer,
    copy_existing,
    open_tokenizer,
    train_tokenizer,
    write_trained,
)
from stages.corpus.world import World
from stages.corpus.world_tests import write_world
from stages.progress import Progress
from stages.spec import Job

Split = Literal["train", "validation"]
BATCH = 1024
"""Documents encoded at a time; the tokenizer spreads them over the cores."""


def run(job: Job) -> dict[str, Any]:
    """Write the corpus into `job.work`. Raises BadInput for text that cannot become one."""
    config: CorpusConfig = job.config
    survey = _Survey(config)
    tokenizer = _tokenizer(config, survey, job.work)
    problems = survey.problems()
    if survey.total:
        problems += _too_few_entries(config, tokenizer)
    if problems:
        raise BadInput(*problems)
    info = _write_shards(config, tokenizer, survey.total, job.work)
    headline: dict[str, Any] = _headline(info)
    for source in config.sources:
        if isinstance(source, WorldSource):
            world = World(source.seed, source.countries, source.attributes)
            headline |= {
                f"world_{part}": count
                for part, count in write_world(job.work / "world", world).items()
            }
    return headline


def split_of(text: str, config: CorpusConfig) -> Split:
    """A document's split, from its own text alone: more documents never move the others."""
    digest = hashlib.sha256(f"{config.seed}\n{text}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return "validation" if share < config.validation_share else "train"


class _Survey:
    """A first reading of all sources: counts documents, hands out training text on the way."""

    def __init__(self, config: CorpusConfig):
        self._config = config
        self.documents: dict[Split, int] = {"train": 0, "validation": 0}

    @property
    def total(self) -> int:
        return sum(self.documents.values())

    def training_text(self, max_bytes: int) -> Iterator[str]:
        """Training documents, up to `max_bytes` of UTF-8; all documents are counted."""
        given = 0
        for text in documents(self._config.sources):
            split = split_of(text, self._config)
            self.documents[split] += 1
            if split == "train" and given < max_bytes:
                given += len(text.encode())
                yield text

    def problems(self) -> list[str]:
        """What is wrong if there is no text, or too little of it to split."""
        if self.total == 0:
            return ["corpus.sources: hold no text, only white space"]
        if self.total == 1:
            return [
                "corpus.sources: hold one document only, which cannot be split into training and "
                "validation; give more files, or set documents: paragraph or line"
            ]
        return [
            f"corpus.validation_share: is {self._config.validation_share}; none of the "
            f"{self.total} documents falls into {split}. Choose another share (or another "
            "seed), or cut the text into more documents with documents: paragraph or line"
            for split, count in self.documents.items()
            if count == 0
        ]


def _too_few_entries(config: CorpusConfig, tokenizer: CorpusTokenizer) -> list[str]:
    wanted = config.tokenizer.vocab_size
    if wanted is None or tokenizer.vocab_size >= wanted:
        return []
    return [
        f"corpus.tokenizer.vocab_size: is {wanted}; the text has too few different words for it, "
        f"{tokenizer.vocab_size} is the most it gives"
    ]


def _tokenizer(config: CorpusConfig, survey: _Survey, work: Path) -> CorpusTokenizer:
    texts = survey.training_text(config.tokenizer.max_bytes)
    if config.tokenizer.file is not None:
        path = Path(config.tokenizer.file)
        existing = open_tokenizer(path, config.tokenizer.eos_token)
        copy_existing(path, work, config.tokenizer.eos_token)
        for _ in texts:  # counts
            pass
        return existing
    print("corpus: reading and training the tokenizer", flush=True)
    assert config.tokenizer.vocab_size is not None  # the config has checked it
    trained = train_tokenizer(texts, config.tokenizer.vocab_size)
    write_trained(work, trained)
    return trained


def _write_shards(
    config: CorpusConfig, tokenizer: CorpusTokenizer, total: int, work: Path
) -> CorpusInfo:
    progress = Progress("corpus", total, "documents")
    done = 0
    writer = CorpusWriter(
        work,
        vocab_size=tokenizer.vocab_size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
    )
    with writer:
        stream = documents(config.sources)
        while batch := list(islice(stream, BATCH)):
            for text, ids in zip(batch, tokenizer.encode(batch), strict=True):
                writer.add(split_of(text, config), ids, len(text.encode()))
            done += len(batch)
            progress.update(done)
    return writer.info


def _headline(info: CorpusInfo) -> dict[str, Any]:
    train, validation = info.splits["train"], info.splits["validation"]
    tokens = train.tokens + validation.tokens
    return {
        "documents": train.documents + validation.documents,
        "tokens": tokens,
        "validation_tokens": validation.tokens,
        "bytes_per_token": round((train.bytes + validation.bytes) / tokens, 3),
        "vocab_size": info.vocab_size,
    }
