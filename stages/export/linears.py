"""How weights are stored and multiplied, by precision; activations are float32 in all of them.

Norms and biases stay float32: they are a thousandth of the weights.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.onnx_bundle import IDS, LOGITS
from artifacts.onnx_kinds import Precision
from stages.export.external_data import Stored, row_blocks
from stages.export.graph import FLOAT, MICROSOFT, GraphWriter
from stages.export.kinds import Int4Block

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ZERO = 128
"""The unsigned byte that means 0. Signed weights saturate on processors without VNNI."""


class Linears(Protocol):
    """What bundle and decoder ask of a precision."""

    def store(self, name: str, weight: np.ndarray) -> Iterator[Stored]:
        """The initialisers that hold a tensor; linear weights come as [out, in]."""
        ...

    def embed(self, graph: GraphWriter) -> str:
        """Rows of the embedding for the input ids, float32 [B, S, C]."""
        ...

    def linear(self, graph: GraphWriter, x: str, name: str) -> str:
        """`x` times the transpose of the weight `name`, without bias."""
        ...

    def joined(
        self, graph: GraphWriter, x: str, names: Sequence[str], order: Sequence[int] | None = None
    ) -> str | None:
        """Several of them side by side in the last axis; None if that is no gain.

        `order` says which of their outputs comes where.
        """
        ...

    def head(self, graph: GraphWriter, x: str) -> None:
        """The logits, as the graph's output."""
        ...


def linears_of(
    precision: Precision, architecture: Architecture, int4_block: Int4Block = 32
) -> Linears:
    """The way of this precision. Raises BadInput if the model's shape does not allow it."""
    if precision == "int8":
        return Int8(architecture)
    if precision == "int4":
        return Int4(architecture, int4_block)
    return Floats(architecture, half=precision == "fp16")


def transposed(name: str) -> str:
    """Name of the initialiser that holds a linear weight as [in, out], for MatMul."""
    return f"{name}.T"


class Floats:
    """float32, or stored as float16 and cast when the graph is loaded."""

    def __init__(self, architecture: Architecture, half: bool = False):
        self._tied, self._half = architecture.tied_head, half
        self._dtype = np.dtype("<f2" if half else "<f4")

    def store(self, name: str, weight: np.ndarray) -> Iterator[Stored]:
        if weight.ndim == 1:
            yield Stored(name, "<f4", weight.shape, row_blocks(weight, "<f4"))
            return
        flip = name != EMBEDDING
        if flip:
            name, weight = transposed(name), weight.T
        blocks = row_blocks(weight, self._dtype.str)
        yield Stored(name, self._dtype.str, weight.shape, _finite(name, blocks))

    def embed(self, graph: GraphWriter) -> str:
        return self._cast(graph, graph.add("Gather", EMBEDDING, IDS, axis=0))

    def linear(self, graph: GraphWriter, x: str, name: str) -> str:
        return graph.add("MatMul", x, self._cast(graph, transposed(name)))

    def joined(
        self, graph: GraphWriter, x: str, names: Sequence[str], order: Sequence[int] | None = None
    ) -> str | None:
        return None

    def head(self, graph: GraphWriter, x: str) -> None:
        head_CV = transposed(HEAD)
        if self._tied:
            head_CV = graph.add("Transpose", EMBEDDING, perm=[1, 0])
        # The output comes from the operator itself: behind an Identity some engines rename it.
        graph.add("MatMul", x, self._cast(graph, head_CV), out=LOGITS)

    def _cast(self, graph: GraphWriter, value: str) -> str:
        return graph.add("Cast", value, to=FLOAT) if self._half else value


class Int8:
    """Unsigned bytes with a scale for each output; inputs are rounded to bytes token by token.

    A scale for each token, not one for all as DynamicQuantizeLinear has, since otherwise an answer
    would depend on who shares its batch, and a prompt read in pieces would differ from one read
    whole.
    """

    def __init__(self, architecture: Architecture):
        self._tied = architecture.tied_head
        self._rounded: dict[str, tuple[str, str]] = {}

    def store(self, name: str, weight: np.ndarray) -> Iterator[Stored]:
        if weight.ndim == 1:
            yield Stored(name, "<f4", weight.shape, row_blocks(weight, "<f4"))
            return
        largest = [np.abs(block).max(axis=1) for block in row_blocks(weight, "<f4")]
        scale_N = np.maximum(np.concatenate(largest) / 127, np.finfo(np.float32).tiny)
        if name == EMBEDDING:
            blocks = (
                _bytes(block / scale[:, None])
                for block, scale in _with_scales(row_blocks(weight, "<f4"), scale_N)
            )
            yield Stored(name, "|u1", weight.shape, blocks)
        else:
            columns = row_blocks(weight.T, "<f4")
            yield Stored(
                transposed(name), "|u1", weight.shape[::-1], (_bytes(b / scale_N) for b in columns)
            )
        yield Stored(f"{name}.scale", "<f4", scale_N.shape, iter([scale_N]))

    def embed(self, graph: GraphWriter) -> str:
        bytes_BSC = graph.add("Gather", EMBEDDING, IDS, axis=0)
        centred = graph.add("Sub", graph.add("Cast", bytes_BSC, to=FLOAT), graph.number(ZERO))
        scale_BS = graph.add("Gather", f"{EMBEDDING}.scale", IDS, axis=0)
        return graph.add("Mul", centred, graph.add("Unsqueeze", scale_BS, graph.ints(-1)))

    def linear(self, graph: GraphWriter, x: str, name: str) -> str:
        return self._multiply(graph, x, transposed(name), f"{name}.scale")

    def joined(
        self, graph: GraphWriter, x: str, names: Sequence[str], order: Sequence[int] | None = None
    ) -> str | None:
        return None

    def head(self, graph: GraphWriter, x: str) -> None:
        if self._tied:
            head_CV = graph.add("Transpose", EMBEDDING, perm=[1, 0])
            self._multiply(graph, x, head_CV, f"{EMBEDDING}.scale", LOGITS)
        else:
            self._multiply(graph, x, transposed(HEAD), f"{HEAD}.scale", LOGITS)

    def _multiply(
        self, graph: GraphWriter, x: str, weight: str, scale: str, out: str | None = None
    ) -> str:
        if x not in self._rounded:  # q, k and v share an input, gate and up as well
            self._rounded[x] = self._round(graph, x)
        bytes_BSK, scale_BS1 = self._rounded[x]
        zero = graph.constant(ZERO, np.uint8)
        whole = graph.add("MatMulInteger", bytes_BSK, weight, zero, zero)
        y = graph.add("Mul", graph.add("Cast", whole, to=FLOAT), scale_BS1)
        return graph.add("Mul", y, scale, out=out)

    def _round(self, graph: GraphWriter, x: str) -> tuple[str, str]:
        """`x` as bytes, and the scale of each token."""
        largest = graph.add("ReduceMax", graph.add("Abs", x), graph.ints(-1), keepdims=1)
        largest = graph.add("Max", largest, graph.number(float(np.finfo(np.float32).tiny * 1000)))
        scale_BS1 = graph.add("Mul", largest, graph.number(1 / 127))
        steps = graph.add("Div", x, scale_BS1)
        zero = graph.constant(ZERO, np.uint8)
        return graph.add("QuantizeLinear", steps, graph.number(1.0), zero), scale_BS1


class Int4:
    """Blocks of weights of four bits with a scale each, in onnxruntime's own operators.

    A tied head and the embedding are one tensor.
    """

    def __init__(self, architecture: Architecture, block: Int4Block):
        self._a, self._block = architecture, block
        if architecture.hidden_size % block:
            raise BadInput(
                f"export.precision: is int4; hidden_size is {architecture.hidden_size}, which is "
                f"no multiple of int4_block, {block}; "
                + ("another precision would do" if block == 32 else "a smaller block might do")
            )
        self._shapes = architecture.tensor_shapes()

    def store(self, name: str, weight: np.ndarray) -> Iterator[Stored]:
        if weight.ndim == 1:
            yield Stored(name, "<f4", weight.shape, row_blocks(weight, "<f4"))
            return
        out, width = weight.shape
        blocks = -(-width // self._block)
        scales = np.empty((out, blocks), np.float32)

        def packed() -> Iterator[np.ndarray]:
            begin = 0
            for rows in row_blocks(weight, "<f4"):
                bytes_NBH, scales[begin : begin + len(rows)] = _nibbles(rows, self._block)
                begin += len(rows)
                yield bytes_NBH

        # The embedding as rows, since engines want it constant there; the head reshapes it.
        shape = (out, blocks, self._block // 2) if name != EMBEDDING else (out, width // 2)
        yield Stored(f"{name}.q4", "|u1", shape, packed())
        yield Stored(f"{name}.scale", "<f4", scales.shape, iter([scales]))

    def embed(self, graph: GraphWriter) -> str:
        return graph.add(
            "GatherBlockQuantized",
            f"{EMBEDDING}.q4",
            IDS,
            f"{EMBEDDING}.scale",
            domain=MICROSOFT,
            bits=4,
            block_size=self._block,
            gather_axis=0,
            quantize_axis=1,
        )

    def linear(self, graph: GraphWriter, x: str, name: str) -> str:
        return self._multiply(graph, x, name, None)

    def joined(
        self, graph: GraphWriter, x: str, names: Sequence[str], order: Sequence[int] | None = None
    ) -> str | None:
        # Engines join constants when they load the graph; then the inputs are rounded once only.
        weight, scale = (
            graph.joined([f"{name}.{part}" for name in names], order) for part in ("q4", "scale")
        )
        rows, width = sum(self._shapes[name][0] for name in names), self._shapes[names[0]][1]
        return self._matmul(graph, x, weight, scale, rows, width, None)

    def head(self, graph: GraphWriter, x: str) -> None:
        self._multiply(graph, x, EMBEDDING if self._a.tied_head else HEAD, LOGITS)

    def _multiply(self, graph: GraphWriter, x: str, name: str, out: str | None) -> str:
        rows, width = self._shapes[name]
        weight = f"{name}.q4"
        if name == EMBEDDING:
            blocks = graph.ints(rows, width // self._block, self._block // 2)
            weight = graph.add("Reshape", weight, blocks)
        return self._matmul(graph, x, weight, f"{name}.scale", rows, width, out)

    def _matmul(
        self,
        graph: GraphWriter,
        x: str,
        weight: str,
        scale: str,
        rows: int,
        width: int,
        out: str | None,
    ) -> str:
        return graph.add(
            "MatMulNBits",
            x,
            weight,
            scale,
            out=out,
            domain=MICROSOFT,
            K=width,
            N=rows,
            bits=4,
            block_size=self._block,
            accuracy_level=4,  # inputs as bytes, a scale for each token and block
        )


def _finite(name: str, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Half precision ends at 65504; what lies beyond would be infinite."""
    for block in blocks:
        if block.dtype.itemsize == 2 and not np.isfinite(block).all():
            raise BadInput(
                f"export.precision: is fp16, which ends at 65504; {name} holds larger values; "
                "another precision would do"
            )
        yield block


def _bytes(steps: np.ndarray) -> np.ndarray:
    """Whole steps from -127 to 127 as unsigned bytes."""
    return (np.clip(np.rint(steps), -127, 127) + ZERO).astype(np.uint8)


def _with_scales(
    blocks: Iterator[np.ndarray], scale_N: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    begin = 0
    for block in blocks:
        yield block, scale_N[begin : begin + len(block)]
        begin += len(block)


def _nibbles(rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, K] as half bytes [N, blocks, size/2], the even ones low, and scales [N, blocks].

    The largest weight of a block becomes -8 exactly, the end of the range that has one more step.
    """
    count, width = rows.shape
    blocks = -(-width // size)
    padded = np.pad(rows, ((0, 0), (0, blocks * size - width))).reshape(count, blocks, size)
    at = np.abs(padded).argmax(axis=-1, keepdims=True)
    scale = np.take_along_axis(padded, at, axis=-1) / -8
    steps = np.divide(padded, scale, out=np.zeros_like(padded), where=scale != 0)
    nibbles = (np.clip(np.rint(steps), -8, 7) + 8).astype(np.uint8)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4, scale[..., 0]
