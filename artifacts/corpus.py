"""A corpus on disk: token shards with their documents' boundaries, written once, read mapped.

Format 1. Beside the tokenizer's files (`tokenizer.json`, ...) stand

- `corpus.json`: `{"format": 1, "vocab_size", "dtype": "uint16" | "uint32", "bos_id": null | int,
  "eos_id", "pad_id", "splits": {"train": {"tokens", "documents", "bytes", "shards": [names]},
  "validation": {...}}}`; `tokens` counts the end-of-document tokens too, `bytes` is UTF-8 text.
- `<split>-00000.bin`: the shard's tokens, raw little-endian `dtype`; every document is followed by
  `eos_id`, and no document spans two shards.
- `<split>-00000.docs`: raw little-endian int64, where each document starts in the shard, in tokens.

`np.fromfile(name, dtype)` reads either without this module.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.errors import BadInput
from artifacts.paths import is_name
from artifacts.validation import file_sentences, shown

INFO = "corpus.json"
SHARD_TOKENS = 1 << 28
"""Tokens after which a writer starts the next shard: 0.5 to 1 GiB a file."""


BLOCK = 1 << 24
"""Tokens looked at together."""


class SplitInfo(BaseModel):
    """One split's totals and files."""

    model_config = ConfigDict(extra="forbid")
    tokens: int = Field(ge=0, description="tokens, those that end documents included")
    documents: int = Field(ge=0, description="number of documents")
    bytes: int = Field(ge=0, description="UTF-8 bytes of the text")
    shards: list[str] = Field(description="names of the .bin files, in order")


class CorpusInfo(BaseModel):
    """`corpus.json`."""

    model_config = ConfigDict(extra="forbid")
    format: Literal[1] = 1
    vocab_size: int = Field(gt=0, description="number of token ids, from the tokenizer")
    dtype: Literal["uint16", "uint32"]
    bos_id: int | None
    eos_id: int
    pad_id: int
    splits: dict[str, SplitInfo]


class TokenStream:
    """One split: all its tokens as one line of numbers, whatever shard each is in."""

    def __init__(self, directory: Path, info: SplitInfo, dtype: np.dtype[Any], eos_id: int):
        self.tokens, self.documents, self.bytes = info.tokens, info.documents, info.bytes
        self._directory, self._names = directory, info.shards
        self._shards: list[np.ndarray] = []
        self._bases: list[int] = [0]
        documents = 0
        for name in info.shards:
            if not is_name(name) or not name.endswith(".bin"):
                raise BadInput(f"{directory / INFO}: shard {shown(name)} is no .bin file beside it")
            path = directory / name
            shard = _map(path, dtype)
            starts = _map(path.with_suffix(".docs"), np.dtype("<i8"))
            _check_boundaries(path, shard, starts, eos_id)
            self._shards.append(shard)
            documents += len(starts)
            self._bases.append(self._bases[-1] + len(shard))
        found = (self._bases[-1], documents)
        if found != (self.tokens, self.documents):
            raise BadInput(
                f"{directory}: its shards hold {found[0]} tokens in {found[1]} documents, "
                f"{INFO} says {self.tokens} in {self.documents}"
            )

    def slice(self, start: int, length: int) -> np.ndarray:
        """Tokens [start, start + length) as int32, across shards; only these pages are read.

        Raises IndexError if the range leaves the split.
        """
        if start < 0 or length < 0 or start + length > self.tokens:
            raise IndexError(f"tokens {start} to {start + length} of {self.tokens}")
        out = np.empty(length, np.int32)
        filled = 0
        # The last shard that begins at or before `start`.
        at = int(np.searchsorted(self._bases, start, side="right")) - 1
        while filled < length:
            offset = start + filled - self._bases[at]
            piece = self._shards[at][offset : offset + length - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            at += 1
        return out

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise BadInput naming the shard with a token beyond the vocabulary. Reads every token.

        An engine would stop at one in the middle of training, or read past its embedding.
        """
        for name, shard in zip(self._names, self._shards, strict=True):
            blocks = (shard[i : i + BLOCK] for i in range(0, len(shard), BLOCK))
            largest = max((int(block.max()) for block in blocks), default=0)
            if largest >= vocab_size:
                raise BadInput(
                    f"{self._directory / name}: holds token {largest}, {INFO} says that the "
                    f"vocabulary ends at {vocab_size - 1}"
                )


class TokenCorpus:
    """A corpus directory, opened for reading. Raises BadInput if it is not whole."""

    def __init__(self, directory: Path):
        self.directory = directory
        path = directory / INFO
        try:
            self.info = CorpusInfo.model_validate_json(path.read_bytes())
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
        except ValidationError as error:
            raise BadInput(*file_sentences(error, path)) from None
        self.vocab_size = self.info.vocab_size
        self.bos_id, self.eos_id, self.pad_id = (
            self.info.bos_id,
            self.info.eos_id,
            self.info.pad_id,
        )

    def split(self, name: str) -> TokenStream:
        """One split, by name ("train" or "validation"). Raises BadInput if there is none such."""
        if name not in self.info.splits:
            raise BadInput(
                f"{self.directory / INFO}: has no split {name!r}, "
                f"only {', '.join(self.info.splits) or 'none'}"
            )
        dtype = np.dtype(self.info.dtype).newbyteorder("<")
        return TokenStream(self.directory, self.info.splits[name], dtype, self.eos_id)


class CorpusWriter:
    """Writes a corpus document by document; memory use does not grow with the text.

    Use as a context manager: leaving it closes the shards and writes `corpus.json`. The files of
    the tokenizer are the caller's to put beside it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        vocab_size: int,
        eos_id: int,
        pad_id: int,
        bos_id: int | None = None,
        shard_tokens: int = SHARD_TOKENS,
        splits: Sequence[str] = ("train", "validation"),
    ):
        dtype: Literal["uint16", "uint32"] = "uint16" if vocab_size <= 1 << 16 else "uint32"
        self._directory = directory
        self._eos_id = eos_id
        self.info = CorpusInfo(
            vocab_size=vocab_size,
            dtype=dtype,
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
            splits={},
        )
        self._writers = {
            name: _SplitWriter(directory, name, np.dtype(dtype).newbyteorder("<"), shard_tokens)
            for name in splits
        }

    def add(self, split: str, ids: Sequence[int] | np.ndarray, utf8_bytes: int) -> None:
        """Append one document: its token ids without the end-of-document token, its text's size.

        Raises ValueError for an id outside the vocabulary.
        """
        array = np.append(np.asarray(ids, np.int64), self._eos_id)
        if array.min() < 0 or array.max() >= self.info.vocab_size:
            raise ValueError(f"a token id lies outside 0..{self.info.vocab_size - 1}")
        self._writers[split].add(array, utf8_bytes)

    def close(self) -> CorpusInfo:
        """Close the shards and write `corpus.json`. Returns what it says."""
        self.info.splits = {name: writer.close() for name, writer in self._writers.items()}
        text = json.dumps(self.info.model_dump(), indent=1) + "\n"
        (self._directory / INFO).write_text(text, encoding="utf-8")
        return self.info

    def __enter__(self) -> "CorpusWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            for writer in self._writers.values():
                writer.close()


class _SplitWriter:
    def __init__(self, directory: Path, name: str, dtype: np.dtype[Any], shard_tokens: int):
        self._directory, self._name, self._dtype = directory, name, dtype
        self._shard_tokens = shard_tokens
        self._info = SplitInfo(tokens=0, documents=0, bytes=0, shards=[])
        self._open: tuple[BinaryIO, BinaryIO] | None = None
        self._in_shard = 0

    def add(self, ids: np.ndarray, utf8_bytes: int) -> None:
        if self._in_shard and self._in_shard + len(ids) > self._shard_tokens:
            self._close_shard()
        if self._open is None:
            name = f"{self._name}-{len(self._info.shards):05}.bin"
            path = self._directory / name
            self._open = (path.open("wb"), path.with_suffix(".docs").open("wb"))
            self._info.shards.append(name)
        tokens, starts = self._open
        starts.write(np.asarray(self._in_shard, "<i8").tobytes())
        tokens.write(ids.astype(self._dtype).tobytes())
        self._in_shard += len(ids)
        self._info.tokens += len(ids)
        self._info.documents += 1
        self._info.bytes += utf8_bytes

    def close(self) -> SplitInfo:
        self._close_shard()
        return self._info

    def _close_shard(self) -> None:
        if self._open is not None:
            for file in self._open:
                file.close()
        self._open, self._in_shard = None, 0


def _map(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise BadInput(f"{path}: {size} bytes are no whole number of {dtype.name}; cut short?")
        return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def _check_boundaries(path: Path, shard: np.ndarray, starts: np.ndarray, eos_id: int) -> None:
    """Documents tile the shard and each is closed by eos; else a mask built on them would lie."""
    whole = len(starts) > 0 and starts[0] == 0 and starts[-1] < len(shard)
    if not whole or not bool(np.all(np.diff(starts) > 0)):
        raise BadInput(f"{path.with_suffix('.docs')}: its offsets do not divide {path.name}")
    ends = np.append(starts[1:], len(shard)) - 1
    # First and last only: a look at every end would page in the whole shard.
    if shard[ends[0]] != eos_id or shard[ends[-1]] != eos_id:
        raise BadInput(f"{path.with_suffix('.docs')}: a document does not end in token {eos_id}")
