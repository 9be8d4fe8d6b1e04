"""The engines a model is scored on, behind one small interface."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from artifacts.errors import BadInput

LOGITS_BYTES = 256 << 20
"""Most memory for the logits of one forward pass; batches that need more are cut."""


Prefix = Any
"""What a backend remembers of tokens that several rows begin with."""


class Backend(Protocol):
    """A loaded model. Token ids are int32 [B, T], padded on the right to the longest row.

    With a `prefix`, ids are what follows it in each row, and what is found is about them.
    """

    name: str
    """mindspore or onnxruntime."""
    dtype: str
    max_positions: int
    vocab_size: int
    eos_ids: list[int]
    """The model's own end-of-sequence tokens, at which what is served ends; may be empty."""

    def read(self, ids_P: np.ndarray) -> Prefix:
        """Read tokens int32 [P] that several rows begin with, once for all of them."""
        ...

    def follow(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Prefix = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of token t+1 given those up to t: log-probability float32 [B, T-1], and whether it is the
        most likely one. Rows may be one token longer than `max_positions`."""
        ...

    def next_logits(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Prefix = None
    ) -> np.ndarray:
        """Logits float32 [B, V] of the token after each row's last."""
        ...


class MindSporeBackend:
    """A checkpoint or Hugging Face directory, with an unmerged adapter if given.

    Batches of fewer than `rows` rows without a prefix are filled up: MindSpore compiles a graph for
    each shape, which takes longer than the rows do.
    """

    name, dtype = "mindspore", "float32"

    def __init__(
        self, directory: Path, adapter: Path | None = None, device: str = "auto", rows: int = 1
    ):
        # Here, since a bundle is scored without MindSpore, whose import takes seconds.
        from artifacts.hf_model import read_model
        from stages.engine.inference import InferenceModel

        self._model = InferenceModel.load(directory, adapter, device)  # type: ignore[arg-type]
        self._rows = rows
        self.max_positions = self._model.architecture.max_positions
        self.vocab_size = self._model.architecture.vocab_size
        self.eos_ids = read_model(directory).eos_ids

    def read(self, ids_P: np.ndarray) -> Prefix:
        return self._model.read(ids_P)

    def follow(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Prefix = None
    ) -> tuple[np.ndarray, np.ndarray]:
        count = len(ids_BT)
        if prefix is not None:
            parts = [
                self._model.score_after(prefix, ids_BT[part], lengths_B[part])
                for part in _parts(len(ids_BT), ids_BT.shape[1], self.vocab_size)
            ]
            logprobs, greedy = zip(*parts, strict=True)
            return np.concatenate(logprobs), np.concatenate(greedy)
        logprobs, greedy = self._model.score(*self._filled(ids_BT, lengths_B))
        return logprobs[:count], greedy[:count]

    def next_logits(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Prefix = None
    ) -> np.ndarray:
        if prefix is not None:
            return self._model.next_after(prefix, ids_BT, lengths_B)
        count = len(ids_BT)
        ids_BT, lengths_B = self._filled(ids_BT, lengths_B)
        found = np.empty((len(ids_BT), self.vocab_size), np.float32)
        for part in _parts(ids_BT.shape[0], ids_BT.shape[1], self.vocab_size):
            logits_BTV = self._model.logits(ids_BT[part], _mask(ids_BT[part], lengths_B[part]))
            found[part] = _last(logits_BTV, lengths_B[part])
        return found[:count]

    def _filled(self, ids_BT: np.ndarray, lengths_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        more = max(0, self._rows - len(ids_BT))
        return np.pad(ids_BT, ((0, more), (0, 0))), np.pad(lengths_B, (0, more), constant_values=1)


class OnnxBackend:
    """An ONNX bundle in onnxruntime, on the CPU."""

    name = "onnxruntime"

    def __init__(self, directory: Path, adapter: str | None = None):
        # Here, since only bundles need onnxruntime.
        from artifacts.onnx_bundle import OnnxModel

        self._model, self._adapter = OnnxModel(directory), adapter
        precision = self._model.precision
        self.dtype: str = "float32" if precision == "fp32" else precision
        if adapter is not None and adapter not in self._model.adapters:
            known = ", ".join(self._model.adapters) or "none"
            raise BadInput(f"bundle_adapter: is {adapter!r}; {directory} has {known}")
        self.max_positions = self._model.max_positions
        self.vocab_size = self._model.vocab_size
        self.eos_ids = self._model.eos_ids

    def read(self, ids_P: np.ndarray) -> Prefix:
        return self._model.read(ids_P, self._adapter)

    def follow(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Prefix = None
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, length = ids_BT.shape
        logprobs = np.zeros((rows, length - 1), np.float32)
        greedy = np.zeros((rows, length - 1), bool)
        for part in _parts(rows, length, self.vocab_size):
            inputs_BT, next_BT = ids_BT[part, :-1], ids_BT[part, 1:]
            mask_BT = _mask(inputs_BT, lengths_B[part] - 1)
            logits_BTV = self._model.after(prefix, inputs_BT, mask_BT, self._adapter)
            picked = np.take_along_axis(logits_BTV, next_BT[..., None], axis=2)[..., 0]
            logprobs[part] = picked - log_sum_exp(logits_BTV)
            greedy[part] = logits_BTV.argmax(axis=2) == next_BT
        return logprobs, greedy

    def next_logits(
        self, ids_BT: np.ndarray, lengths_B: np.ndarray, prefix: Prefix = None
    ) -> np.ndarray:
        found = np.empty((len(ids_BT), self.vocab_size), np.float32)
        for part in _parts(len(ids_BT), ids_BT.shape[1], self.vocab_size):
            mask_BT = _mask(ids_BT[part], lengths_B[part])
            logits_BTV = self._model.after(prefix, ids_BT[part], mask_BT, self._adapter)
            found[part] = _last(logits_BTV, lengths_B[part])
        return found


def load(
    kind: str,
    directory: Path,
    adapter: Path | None,
    device: str,
    rows: int,
    bundle_adapter: str | None = None,
) -> Backend:
    """The backend for an artifact of this kind, for batches of up to `rows` rows.

    Raises BadInput if the model is not whole.
    """
    if kind != "onnx-bundle":
        if bundle_adapter is not None:
            raise BadInput(
                f"bundle_adapter: is {bundle_adapter!r}; the model is a {kind}, "
                "whose adapter is the input adapter"
            )
        return MindSporeBackend(directory, adapter, device, rows)
    if adapter is not None:
        raise BadInput(
            "inputs.adapter: an onnx-bundle takes no adapter; "
            "merge it and export the merged model, or score the Hugging Face model with it"
        )
    return OnnxBackend(directory, bundle_adapter)


def log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """Logarithm of the sum of exponentials over the last axis, without overflow."""
    most = logits.max(axis=-1)
    total: np.ndarray = most + np.log(np.exp(logits - most[..., None]).sum(axis=-1))
    return total


def _parts(rows: int, length: int, vocab_size: int) -> list[slice]:
    """Rows in portions whose logits fit into LOGITS_BYTES."""
    step = max(1, LOGITS_BYTES // (4 * length * vocab_size))
    return [slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def _mask(ids_BT: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
    mask: np.ndarray = np.arange(ids_BT.shape[1])[None, :] < lengths_B[:, None]
    return mask


def _last(logits_BTV: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
    last: np.ndarray = logits_BTV[np.arange(len(lengths_B)), lengths_B - 1]
    return last
