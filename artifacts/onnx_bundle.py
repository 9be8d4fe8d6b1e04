"""An ONNX bundle: the names of its files, axes and values, and how it is run in onnxruntime."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime as ort
from pydantic import BaseModel, ValidationError

from artifacts.architecture import Size
from artifacts.errors import BadInput
from artifacts.json_files import read_object
from artifacts.onnx_kinds import Operators, Precision
from artifacts.paths import is_name
from artifacts.validation import file_sentences

GRAPH = "model.onnx"
DATA = "model.onnx_data"
"""The external data's name; transformers.js wants exactly this one."""
FOLDER = "onnx"
"""Where graph and data stand in a bundle that is laid out for transformers.js."""
GENAI_CONFIG = "genai_config.json"

ADAPTERS, ADAPTER_SUFFIX = "adapters", ".onnx_adapter"
PRECISION, OPERATORS = "mindcycle.precision", "mindcycle.operators"
"""Keys of the graph's metadata; absent for fp32 and plain operators."""

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
BATCH, SEQUENCE, PAST, TOTAL = (
    "batch_size",
    "sequence_length",
    "past_sequence_length",
    "total_sequence_length",
)
"""Names of the dynamic axes. lm-eval binds shapes by their substrings, so they must not change."""

CACHED = "past_key_values."
"""How the names of the inputs begin that bring keys and values."""

Past = list[tuple[np.ndarray, np.ndarray]]
"""Keys and values of every layer, each float32 [B, KV, P, D]."""


def graph_file(directory: Path) -> Path:
    """A bundle's graph, in either layout; in the flat one if there is none."""
    inner = directory / FOLDER / GRAPH
    return inner if inner.is_file() and not (directory / GRAPH).is_file() else directory / GRAPH


def adapter_file(directory: Path, name: str) -> Path:
    """Where a bundle keeps the adapter of this name."""
    return directory / ADAPTERS / f"{name}{ADAPTER_SUFFIX}"


def past_names(layer: int) -> tuple[str, str]:
    """Names of the inputs that bring a layer's cached keys and values."""
    return f"{CACHED}{layer}.key", f"{CACHED}{layer}.value"


def present_names(layer: int) -> tuple[str, str]:
    """Names of the outputs that give a layer's keys and values, the past ones first."""
    return f"present.{layer}.key", f"present.{layer}.value"


class _Decoder(BaseModel):
    num_hidden_layers: Size
    num_key_value_heads: Size
    head_size: Size


class _Model(BaseModel):
    vocab_size: Size
    context_length: Size
    eos_token_id: int | list[int]
    decoder: _Decoder


class _GenaiConfig(BaseModel):
    """What is needed of `genai_config.json`."""

    model: _Model


class OnnxModel:
    """A bundle loaded into onnxruntime on the CPU."""

    def __init__(self, directory: Path, threads: int = 0):
        """Load `directory`; `threads` 0 lets onnxruntime choose.

        Raises BadInput naming the file that is missing, cut or no ONNX bundle.
        """
        self.directory = directory
        self.genai = read_object(directory / GENAI_CONFIG)
        try:
            model = _GenaiConfig.model_validate(self.genai).model
        except ValidationError as error:
            raise BadInput(*file_sentences(error, directory / GENAI_CONFIG)) from None
        self.vocab_size, self.max_positions = model.vocab_size, model.context_length
        self.layers, self.kv_heads = (
            model.decoder.num_hidden_layers,
            model.decoder.num_key_value_heads,
        )
        self.head_dim = model.decoder.head_size
        eos = model.eos_token_id
        self.eos_ids: list[int] = eos if isinstance(eos, list) else [eos]
        config = read_object(directory / "config.json")
        self.bos_id: int | None = config.get("bos_token_id")
        self.pad_id: int | None = config.get("pad_token_id")
        check_data_files(directory)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # its errors reach us as exceptions
        try:
            self.session = ort.InferenceSession(
                str(graph_file(directory)), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            raise BadInput(f"{graph_file(directory)}: onnxruntime refuses it: {error}") from None
        self._check_config(directory / GENAI_CONFIG)
        said = self.session.get_modelmeta().custom_metadata_map
        self.precision: Precision = _one_of(Precision, said.get(PRECISION, "fp32"), directory)
        """How weights are stored; activations are float32."""
        self.operators: Operators = _one_of(Operators, said.get(OPERATORS, "plain"), directory)
        """What attention, norms and rotation are written in."""
        self._adapters: dict[str, ort.LoraAdapter] = {}
        for path in sorted((directory / ADAPTERS).glob(f"*{ADAPTER_SUFFIX}")):
            self.load_adapter(path.name.removesuffix(ADAPTER_SUFFIX), path)

    def _check_config(self, path: Path) -> None:
        """Raise BadInput if the config speaks of another cache than the graph's."""
        caches = [each.shape for each in self.session.get_inputs() if each.name.startswith(CACHED)]
        said = [self.kv_heads, self.head_dim]
        if len(caches) != 2 * self.layers or any([c[1], c[3]] != said for c in caches):
            raise BadInput(
                f"{path}: says {self.layers} layers with {said[0]} key/value heads of {said[1]}; "
                "the graph beside it has others"
            )

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters that can be chosen."""
        return list(self._adapters)

    def load_adapter(self, name: str, path: Path) -> None:
        """Load an `.onnx_adapter` file, to be chosen by `name` at each run.

        Raises BadInput if it is none, or if the graph has no place for one of its tensors.
        """
        if not path.is_file():
            raise BadInput(f"{path}: is no file")
        try:
            content = ort.AdapterFormat.read_adapter(str(path)).get_parameters()
            adapter = ort.LoraAdapter()
            adapter.Load(str(path))
        except Exception:  # onnxruntime's exceptions have no common base but this
            raise BadInput(f"{path}: is no .onnx_adapter file, or is damaged") from None
        places = {value.name: value.shape for value in self.session.get_overridable_initializers()}
        for tensor in sorted(content.keys() - places.keys()):
            raise BadInput(f"{path}: the bundle has no place for {tensor}")
        for tensor in sorted(places.keys() - content.keys()):
            raise BadInput(f"{path}: has nothing for {tensor}; zeros would do where it adds none")
        ranks = set()
        for tensor, wanted in places.items():
            found = content[tensor].shape()
            if any(isinstance(w, int) and w != f for w, f in zip(wanted, found, strict=False)):
                raise BadInput(f"{path}: {tensor} is {found}, the bundle takes {wanted}")
            ranks |= {f for w, f in zip(wanted, found, strict=False) if not isinstance(w, int)}
        if len(ranks) > 1:
            raise BadInput(f"{path}: has the ranks {sorted(ranks)}; one for all would be right")
        self._adapters[name] = adapter

    def logits(
        self,
        ids_BT: np.ndarray,
        mask_BT: np.ndarray | None = None,
        positions_BT: np.ndarray | None = None,
    ) -> np.ndarray:
        """Logits as float32 [B, T, V], without a past.

        `mask_BT` is true where a token counts. Positions count those tokens from 0 unless given.
        """
        mask_BT = np.ones(ids_BT.shape, bool) if mask_BT is None else mask_BT
        if positions_BT is None:
            positions_BT = positions_of(mask_BT)
        return self.forward(ids_BT, mask_BT, positions_BT, None)[0]

    def read(self, ids_P: np.ndarray, adapter: str | None = None) -> Past:
        """Keys and values of tokens [P] that several rows begin with."""
        ids_1P = np.asarray(ids_P)[None]
        mask_1P = np.ones(ids_1P.shape, bool)
        return self.forward(ids_1P, mask_1P, positions_of(mask_1P), None, adapter)[1]

    def after(
        self,
        past: Past | None,
        ids_BS: np.ndarray,
        mask_BS: np.ndarray,
        adapter: str | None = None,
    ) -> np.ndarray:
        """Logits float32 [B, S, V] of rows that all follow the tokens of one `read`, if given."""
        if past is None:
            return self.forward(ids_BS, mask_BS, positions_of(mask_BS), None, adapter)[0]
        rows, length = len(ids_BS), past[0][0].shape[2]
        mask_BT = np.concatenate([np.ones((rows, length), bool), mask_BS], axis=1)
        repeated = [(np.repeat(k, rows, axis=0), np.repeat(v, rows, axis=0)) for k, v in past]
        positions_BS = positions_of(mask_BT)[:, length:]
        return self.forward(ids_BS, mask_BT, positions_BS, repeated, adapter)[0]

    def forward(
        self,
        ids_BS: np.ndarray,
        mask_BT: np.ndarray,
        positions_BS: np.ndarray,
        past: Past | None,
        adapter: str | None = None,
    ) -> tuple[np.ndarray, Past]:
        """One step: S new tokens after P cached ones; `mask_BT` covers all T = P + S.

        `adapter` names a loaded one; None is the model by itself. Returns logits float32 [B, S, V]
        and the keys and values of all T tokens.
        """
        past = self.empty_past(len(ids_BS)) if past is None else past
        feed = {
            IDS: np.ascontiguousarray(ids_BS, np.int64),
            MASK: np.ascontiguousarray(mask_BT, np.int64),
            POSITIONS: np.ascontiguousarray(positions_BS, np.int64),
        }
        for layer, pair in enumerate(past):
            feed.update(zip(past_names(layer), pair, strict=True))
        wanted = [LOGITS] + [name for i in range(self.layers) for name in present_names(i)]
        options = None
        if adapter is not None:
            options = ort.RunOptions()
            options.add_active_adapter(self._adapters[adapter])
        logits, *flat = self.session.run(wanted, feed, options)
        return logits, list(zip(flat[0::2], flat[1::2], strict=True))

    def empty_past(self, batch: int) -> Past:
        """The past before the first token."""
        empty = np.zeros((batch, self.kv_heads, 0, self.head_dim), np.float32)
        return [(empty, empty)] * self.layers


def _one_of(kinds: Any, said: str, directory: Path) -> Any:
    if said not in get_args(kinds):
        known = ", ".join(get_args(kinds))
        raise BadInput(f"{graph_file(directory)}: says that it is {said!r}; known are {known}")
    return said


def positions_of(mask_BT: np.ndarray) -> np.ndarray:
    """Positions int64 [B, T]: each token's place among those that count, from 0."""
    return np.maximum(np.cumsum(np.asarray(mask_BT, bool), axis=1) - 1, 0)


def check_data_files(directory: Path) -> None:
    """Raise BadInput naming a missing graph, or an external data file that is missing or cut."""
    path = graph_file(directory)
    if not path.is_file():
        raise BadInput(f"{path}: is missing, so {directory} is no ONNX bundle")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's and onnx's parsers have no common base but this
        raise BadInput(f"{path}: is no ONNX graph: {error}") from None
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        location = entry.get("location", "")
        data = path.parent / location
        if not is_name(location):
            raise BadInput(f"{path}: tensor {tensor.name} lies outside the bundle: {location!r}")
        if not data.is_file():
            raise BadInput(f"{data}: is missing, {GRAPH} stores tensor {tensor.name} in it")
        end, size = int(entry.get("offset", 0)) + int(entry.get("length", 0)), data.stat().st_size
        if end > size:
            raise BadInput(f"{data}: is cut short, tensor {tensor.name} ends at {end} of {size}")
