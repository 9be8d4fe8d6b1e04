"""A model for scoring: load a directory, get logits, or the log-probability of each next token.

Batches are padded up to a few shapes, since MindSpore compiles a graph for each.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from artifacts.architecture import Architecture, read_architecture
from artifacts.errors import BadInput
from artifacts.weights import Weights
from stages.engine import runtime, weights
from stages.engine.model import MASKED, Decoder, Lora, causal_bias, rotation
from stages.engine.prefix import NextAfterPrefix, ReadPrefix, ScoreAfterPrefix, bias_after

ROW_BUCKETS = (1, 4, 16, 64)
LENGTH_STEP = 32
"""Lengths are rounded up to a power of two, or half way between two, of this many tokens."""


class _Masked(nn.Cell):
    """The decoder with a mask [B, T] (1 = a token, 0 = padding) in front."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder

    def bias(self, mask_BT: Tensor, causal: Tensor) -> Tensor:
        batch, time = mask_BT.shape
        return causal + ops.reshape((1.0 - mask_BT) * MASKED, (batch, 1, 1, 1, time))


class _Logits(_Masked):
    def construct(
        self, ids_BT: Tensor, mask_BT: Tensor, cos: Tensor, sin: Tensor, causal: Tensor
    ) -> Tensor:
        logits = self.decoder(ids_BT, cos, sin, self.bias(mask_BT, causal))
        return ops.reshape(logits, (*ids_BT.shape, -1))


class _Score(_Masked):
    """Of each next token: its log-probability, and whether it is the most likely one."""

    def __init__(self, decoder: Decoder):
        super().__init__(decoder)
        self.log_softmax = ops.LogSoftmax()
        self.gather = ops.GatherD()
        self.argmax = ops.Argmax()

    def construct(
        self, ids_BT: Tensor, next_BT: Tensor, cos: Tensor, sin: Tensor, causal: Tensor
    ) -> Any:
        logits = self.decoder(ids_BT, cos, sin, causal)
        picked = self.gather(self.log_softmax(logits), 1, ops.reshape(next_BT, (-1, 1)))
        greedy = self.argmax(logits) == ops.reshape(next_BT, (-1,))
        return ops.reshape(picked, ids_BT.shape), ops.reshape(greedy, ids_BT.shape)


@dataclass(frozen=True)
class Prefix:
    """A prefix that has been read: what its layers remember of it."""

    length: int
    """Tokens."""
    past: tuple[Tensor, ...]


class InferenceModel:
    """A decoder with fixed weights. Use `load`."""

    def __init__(
        self, architecture: Architecture, tensors: Any, adapter: tuple[Lora, Any] | None = None
    ):
        """`tensors` by Hugging Face name; `adapter` = (Lora, {module: (A, B)}), kept unmerged."""
        self.architecture = architecture
        lora = adapter[0] if adapter else None
        decoder = Decoder(architecture, lora)
        weights.load(decoder, architecture, tensors)
        if adapter:
            weights.load_adapter(decoder, adapter[1])
        decoder.set_train(False)
        self._logits, self._score = _Logits(decoder), _Score(decoder)
        self._read = ReadPrefix(decoder)
        self._next_after, self._score_after = NextAfterPrefix(decoder), ScoreAfterPrefix(decoder)
        self._causal: dict[int, Tensor] = {}

    @classmethod
    def load(
        cls, directory: Path, adapter: Path | None = None, device: runtime.Device = "auto"
    ) -> "InferenceModel":
        """A checkpoint or Hugging Face directory, with an adapter directory on top if given.

        Raises BadInput if either is not whole or they do not fit each other.
        """
        runtime.start(device)
        architecture = read_architecture(directory)
        pair = None
        if adapter is not None:
            # Only here: a model without an adapter needs nothing of it.
            from artifacts.adapter import read_adapter

            read = read_adapter(adapter)
            read.check_fits(architecture)
            pair = (Lora(read.pairs()), read.tensors)
        return cls(architecture, Weights(directory), pair)

    def logits(
        self,
        ids_BT: np.ndarray,
        mask_BT: np.ndarray | None = None,
        positions_BT: np.ndarray | None = None,
    ) -> np.ndarray:
        """Logits float32 [B, T, V] of token ids [B, T].

        `mask_BT` is True for tokens, False for padding on either side; positions count the tokens
        unless given. Rows of padding hold finite numbers without meaning.
        Raises BadInput for an id outside the vocabulary.
        """
        ids_BT = self._checked(ids_BT)
        mask_BT = np.ones(ids_BT.shape, bool) if mask_BT is None else np.asarray(mask_BT, bool)
        if positions_BT is None:
            positions_BT = np.maximum(np.cumsum(mask_BT, axis=1) - 1, 0)
        rows, length = ids_BT.shape
        found = []
        step = ROW_BUCKETS[-1]
        for begin in range(0, rows, step):
            part = slice(begin, min(begin + step, rows))
            shape = (_row_bucket(part.stop - begin), _length_bucket(length))
            out = self._logits(
                Tensor(_pad(ids_BT[part], shape)),
                Tensor(_pad(mask_BT[part].astype(np.float32), shape)),
                *self._rotation(_pad(np.asarray(positions_BT)[part], shape)),
                self._causal_bias(shape[1]),
            )
            found.append(out.asnumpy()[: part.stop - begin, :length])
        return np.concatenate(found)

    def score(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities float32 [B, T-1] of token t+1 given those up to t, and whether greedy.

        Rows are padded on the right: `lengths_B` says how many tokens count; beyond them the
        results are 0 and False. Raises BadInput for an id outside the vocabulary.
        """
        ids_BT = self._checked(ids_BT)
        rows, length = ids_BT.shape
        lengths_B = np.full(rows, length) if lengths_B is None else np.asarray(lengths_B)
        logprobs = np.zeros((rows, length - 1), np.float32)
        greedy = np.zeros((rows, length - 1), bool)
        step = ROW_BUCKETS[-1]
        for begin in range(0, rows, step):
            part = slice(begin, min(begin + step, rows))
            shape = (_row_bucket(part.stop - begin), _length_bucket(length - 1))
            positions = np.broadcast_to(np.arange(shape[1]), shape)
            found = self._score(
                Tensor(_pad(ids_BT[part, :-1], shape)),
                Tensor(_pad(ids_BT[part, 1:], shape)),
                *self._rotation(positions),
                self._causal_bias(shape[1]),
            )
            count = part.stop - begin
            logprobs[part] = found[0].asnumpy()[:count, : length - 1]
            greedy[part] = found[1].asnumpy()[:count, : length - 1]
        beyond = np.arange(1, length)[None, :] >= lengths_B[:, None]
        logprobs[beyond] = 0.0
        greedy[beyond] = False
        return logprobs, greedy

    def read(self, ids_P: np.ndarray) -> Prefix:
        """Read a prefix once for all the rows that begin with it.

        Raises BadInput for an id outside the vocabulary.
        """
        ids_1P = self._checked(ids_P)[None]
        length = ids_1P.shape[1]
        rotations = self._rotation(np.arange(length)[None])
        causal = Tensor(causal_bias(length, self.architecture.sliding_window))
        past = self._read(Tensor(ids_1P), *rotations, causal)
        return Prefix(length, tuple(past))

    def next_after(self, prefix: Prefix, ids_BS: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
        """Logits float32 [B, V] of the token after each row that follows the prefix.

        Rows are padded on the right; `lengths_B` says how many tokens count, 1 at least.
        """
        rows, new = ids_BS.shape
        last_B = np.arange(rows) * new + np.asarray(lengths_B) - 1
        found = self._next_after(
            Tensor(self._checked(ids_BS)),
            Tensor(last_B.astype(np.int32)),
            *self._after(prefix, rows, new),
        )
        return np.asarray(found.asnumpy())

    def score_after(
        self, prefix: Prefix, ids_BT: np.ndarray, lengths_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `score`, of rows that follow the prefix."""
        ids_BT = self._checked(ids_BT)
        rows, new = ids_BT.shape[0], ids_BT.shape[1] - 1
        # A slice is not contiguous, and MindSpore wants its own copy.
        inputs, following = (np.ascontiguousarray(x) for x in (ids_BT[:, :-1], ids_BT[:, 1:]))
        found = self._score_after(
            Tensor(inputs), Tensor(following), *self._after(prefix, rows, new)
        )
        logprobs, greedy = (np.array(one.asnumpy()) for one in found)
        beyond = np.arange(1, new + 1)[None, :] >= np.asarray(lengths_B)[:, None]
        logprobs[beyond] = 0.0
        greedy[beyond] = False
        return logprobs, greedy

    def _after(self, prefix: Prefix, rows: int, new: int) -> tuple[Tensor, ...]:
        positions = np.broadcast_to(prefix.length + np.arange(new), (rows, new))
        bias = Tensor(bias_after(prefix.length, new, self.architecture.sliding_window))
        return (*self._rotation(positions), bias, *prefix.past)

    def _checked(self, ids_BT: np.ndarray) -> np.ndarray:
        ids_BT = np.asarray(ids_BT, np.int32)
        if ids_BT.size and not (ids_BT.min() >= 0 and ids_BT.max() < self.architecture.vocab_size):
            raise BadInput(
                f"token ids reach from {ids_BT.min()} to {ids_BT.max()}, "
                f"the model's vocabulary has {self.architecture.vocab_size}"
            )
        return ids_BT

    def _rotation(self, positions_BT: np.ndarray) -> tuple[Tensor, Tensor]:
        cos, sin = rotation(self.architecture, positions_BT)
        return Tensor(cos), Tensor(sin)

    def _causal_bias(self, length: int) -> Tensor:
        if length not in self._causal:
            self._causal[length] = Tensor(causal_bias(length, self.architecture.sliding_window))
        return self._causal[length]


def _row_bucket(rows: int) -> int:
    return next(bucket for bucket in ROW_BUCKETS if bucket >= rows)


def _length_bucket(length: int) -> int:
    """32, 48, 64, 96, 128, 192, 256, ..."""
    bucket = LENGTH_STEP
    while bucket < length:
        if bucket * 3 // 2 >= length:
            return bucket * 3 // 2
        bucket *= 2
    return bucket


def _pad(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    out = np.zeros(shape, array.dtype if array.dtype != np.int64 else np.int32)
    out[: array.shape[0], : array.shape[1]] = array
    return out
