"""What a training costs, from its sizes alone: memory by part, arithmetic, bytes that travel.

The parts follow the engine's own cells and graphs, and `benchmarks/memory.py` compares their sum
with what a process takes. Bytes and FLOPs throughout.
"""

import math
from dataclasses import dataclass, fields, replace

from artifacts.architecture import Architecture
from stages.engine.causal import halves
from stages.engine.mesh import Layout, Place, bubble, local_shape, pieces
from stages.engine.settings import Precision

FP32 = 4


@dataclass(frozen=True)
class Work:
    """One optimiser step of one model in one layout."""

    shape: Architecture
    layout: Layout
    sequence_length: int
    sequences: int
    """Of one step, over all processes."""
    micro_size: int
    """Sequences a process takes at once."""
    precision: Precision = "fp32"
    recompute: bool = False

    @property
    def micro_batches(self) -> int:
        """That one process adds up for a step."""
        return self.sequences // (self.layout.data * self.micro_size)

    @property
    def tokens(self) -> int:
        """Of one step, over all processes."""
        return self.sequences * self.sequence_length

    @property
    def rows(self) -> int:
        """Tokens that a process takes at once."""
        return self.micro_size * self.sequence_length

    @property
    def number(self) -> int:
        """Bytes of one number in weights, gradients and activations."""
        return FP32 if self.precision == "fp32" else 2


@dataclass(frozen=True)
class Memory:
    """What the fullest process holds at the fullest moment of a step."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's running means and squares, float32."""
    masters: int
    """float32 copies of weights that are not float32 themselves."""
    activations: int
    """What the forward pass keeps for the backward pass."""
    logits: int
    """Logits, their softmax, its logarithm and their gradient, if the process has the head."""

    @property
    def total(self) -> int:
        """All parts."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def before_activations(self) -> int:
        """Weights, gradients and AdamW's state."""
        return self.weights + self.gradients + self.optimizer


def memory(work: Work) -> Memory:
    """The parts for the fullest process."""
    stages = {0, work.layout.pipeline - 1}
    return max((_memory_at(work, stage) for stage in stages), key=lambda found: found.total)


def parameters_at(shape: Architecture, place: Place) -> int:
    """Numbers that one process holds."""
    sizes = local_shape(shape, place).tensor_shapes()
    return sum(math.prod(sizes[name]) for name in pieces(shape, place))


def _memory_at(work: Work, stage: int) -> Memory:
    layout = work.layout
    place = Place(layout, stage * layout.data * layout.tensor)
    held = parameters_at(work.shape, place)
    share = math.ceil(held / layout.data) if layout.zero else held
    halved = work.precision != "fp32"
    # Sums over micro-batches stand beside the gradients of the one at hand, and the update takes
    # a copy of them.
    accumulated = work.micro_batches > 1 or layout.pipeline > 1 or work.recompute
    at_once = held // work.shape.layers if work.recompute else held
    sliced = FP32 * share if layout.zero and not halved else 0  # what AdamW's kernel works on
    return Memory(
        weights=work.number * held,
        gradients=work.number * at_once + (2 * FP32 * held if accumulated else 0),
        optimizer=2 * FP32 * share,
        masters=FP32 * share if halved else sliced,
        activations=_activations(work, place),
        logits=_logits(work) if place.last else 0,
    )


def layer_activations(shape: Architecture, tensor: int, sequence_length: int) -> float:
    """Numbers a token that one layer holds until its backward pass has come by.

    Measured on CPU, where MindSpore also keeps what only the forward pass needed: the residual
    width nine times (the stream twice, attention's projection, and squares, factors and results of
    both norms); queries seven times and values, like keys, four; five of the SwiGLU (gate, up,
    sigmoid, silu, product); and attention's scores three times (as such, masked, as weights), a
    quarter less where it works in halves.
    """
    queries, values = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 7 * queries + 8 * values + 3 * shape.heads * _keys(sequence_length)
    return 9 * shape.hidden_size + (attention + 5 * shape.intermediate_size) / tensor


def _keys(sequence_length: int) -> float:
    """With how many keys attention compares a query, on average."""
    return 0.75 * sequence_length if halves(sequence_length) else sequence_length


def _activations(work: Work, place: Place) -> int:
    shape, layout, rows = work.shape, work.layout, work.rows
    layers = len(layout.layers(place.stage, shape.layers))
    each = layer_activations(shape, layout.tensor, work.sequence_length)
    kept = each + layers * shape.hidden_size if work.recompute else layers * each
    # cos and sin repeated for all heads, and the biases likewise.
    heads = shape.heads // layout.tensor
    rotated = heads + shape.kv_heads // layout.tensor
    constants = 2 * rotated * shape.head_dim + heads * _keys(work.sequence_length)
    total = rows * work.number * (kept + constants)
    if layout.pipeline > 1:  # a stage keeps what came in, and computes the rest again
        in_flight = min(layout.pipeline - place.stage, work.micro_batches)
        total += in_flight * rows * work.number * shape.hidden_size
    return int(total)


def _logits(work: Work) -> int:
    return 5 * work.rows * work.shape.vocab_size // work.layout.tensor * FP32


@dataclass(frozen=True)
class Traffic:
    """Bytes that one process sends in a step, by dimension."""

    data: int
    tensor: int
    pipeline: int


def traffic(work: Work) -> Traffic:
    """With rings: an all-reduce of n bytes among k sends 2 n (k - 1) / k."""
    layout, shape = work.layout, work.shape
    held = parameters_at(shape, Place(layout))
    rounds = 2 if layout.zero else 1  # the gradients, and with ZeRO the new weights
    stream = work.rows * shape.hidden_size * work.number
    layers = len(layout.layers(0, shape.layers))
    # A layer: attention and SwiGLU, each once forward and once backward. Ends: embedding and head.
    reduces = work.micro_batches * (4 * layers + (2 if layout.pipeline == 1 else 1))
    return Traffic(
        data=int(rounds * FP32 * held * _ring(layout.data)),
        tensor=int(reduces * stream * _ring(layout.tensor)),
        pipeline=2 * work.micro_batches * stream if layout.pipeline > 1 else 0,
    )


def _ring(processes: int) -> float:
    return 2 * (processes - 1) / processes


def flops(work: Work) -> int:
    """Of the matrix products of one step, over all processes: forward once, backward twice.

    With recomputation the layers' forward pass is made twice; with pipeline stages that of all
    stages but the last.
    """
    shape, length = work.shape, work.sequence_length
    queries = shape.heads * shape.head_dim
    sizes = shape.tensor_shapes()
    in_layers = sum(
        math.prod(size) for name, size in sizes.items() if ".layers." in name and len(size) == 2
    )
    head = shape.vocab_size * shape.hidden_size
    attention = 2 * shape.layers * queries * length  # q k^T and p v, over all keys
    again = 2.0 * (in_layers + attention) if work.recompute else 0.0
    if work.layout.pipeline > 1:
        last = len(work.layout.layers(work.layout.pipeline - 1, shape.layers))
        again = (1 - last / shape.layers) * 2 * (in_layers + attention)
    return int(work.tokens * (6 * (in_layers + head + attention) + again))


def seconds(work: Work, peak: float, *, shared: bool) -> float:
    """Least time of a step, with products at `peak` FLOP/s and nothing else.

    Either all processes share that peak, as on the cores of one machine, where one works while
    another waits; or each has it to itself, and the pipeline's bubble comes on top.
    """
    if shared:
        return flops(work) / peak
    waiting = bubble(work.layout.pipeline, work.micro_batches)
    return flops(work) / (peak * work.layout.size) / (1 - waiting)


def proposals(work: Work, devices: int, device_memory: int) -> list[Work]:
    """Layouts of `devices` processes in which a step fits, the best first.

    First whole models with data parallelism and accumulation; else the fewest pipeline stages; else
    tensor parallelism on top. In each, the most shares of the batch that it divides into, and the
    most sequences at once that fit.
    """
    found = []
    for tensor in _divisors(devices):
        for pipeline in _divisors(devices // tensor):
            most = devices // tensor // pipeline
            data = max(d for d in _divisors(work.sequences) if d <= most)
            fitting = _fitting(work, Layout(data, tensor, pipeline), device_memory)
            if fitting is not None:
                found.append(fitting)
    return found


def _fitting(work: Work, layout: Layout, device_memory: int) -> Work | None:
    shape = work.shape
    misfits = [
        *layout.misfits(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            intermediate_size=shape.intermediate_size,
            layers=shape.layers,
        ),
        *layout.vocabulary_misfits(shape.vocab_size),
    ]
    if misfits:
        return None
    for micro_size in reversed(_divisors(work.sequences // layout.data)):
        one = replace(work, layout=layout, micro_size=micro_size)
        if one.micro_batches >= layout.pipeline and memory(one).total <= device_memory:
            return one
    return None


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]
