"""How processes share one training: by data, by tensor and by pipeline. Light: no framework here.

Tensor neighbours have neighbouring ranks, since they exchange the most: on several machines, they
stay on one. Then come the data shares, then the stages of the pipeline:
rank = (stage * data + share) * tensor + slice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from artifacts.architecture import Architecture


@dataclass(frozen=True)
class Layout:
    """Numbers of processes along each dimension."""

    data: int = 1
    """Each takes a share of every batch."""
    tensor: int = 1
    """Each holds a slice of every matrix: heads, inner features and vocabulary are divided."""
    pipeline: int = 1
    """Each holds a run of layers."""
    zero: int = 0
    """1: the data processes divide the optimiser's state among themselves."""

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.data * self.tensor * self.pipeline

    def layers(self, stage: int, layers: int) -> range:
        """The layers of one stage. Earlier stages get what is over: the last has the head."""
        each, over = divmod(layers, self.pipeline)
        begin = stage * each + min(stage, over)
        return range(begin, begin + each + (stage < over))

    def misfits(
        self, *, heads: int, kv_heads: int, intermediate_size: int, layers: int
    ) -> Iterator[str]:
        """A sentence for every size of a model that this layout does not divide."""
        sizes = {"heads": heads, "kv_heads": kv_heads, "intermediate_size": intermediate_size}
        for name, size in sizes.items():
            if size % self.tensor:
                yield _indivisible(f"model.{name} {size}", self.tensor)
        if layers < self.pipeline:
            yield (
                f"parallel.pipeline: is {self.pipeline}; the model has only {layers} layers, and "
                "every stage needs one"
            )

    def vocabulary_misfits(self, vocab_size: int) -> Iterator[str]:
        """The same for the vocabulary, which is known later."""
        if vocab_size % self.tensor:
            yield _indivisible(f"the vocabulary of {vocab_size}", self.tensor)


def _indivisible(what: str, tensor: int) -> str:
    return f"parallel.tensor: is {tensor}, which does not divide {what}"


def bubble(pipeline: int, micro_batches: int) -> float:
    """Share of a step in which a stage waits: (P - 1) / (M + P - 1)."""
    return (pipeline - 1) / (micro_batches + pipeline - 1)


@dataclass(frozen=True)
class Place:
    """One process's coordinates in a layout."""

    layout: Layout = field(default_factory=Layout)
    rank: int = 0

    @property
    def tensor(self) -> int:
        """Which slice of the matrices."""
        return self.rank % self.layout.tensor

    @property
    def data(self) -> int:
        """Which share of the batch."""
        return self.rank // self.layout.tensor % self.layout.data

    @property
    def stage(self) -> int:
        """Which stage of the pipeline."""
        return self.rank // (self.layout.tensor * self.layout.data)

    @property
    def first(self) -> bool:
        """Whether it holds the embedding that tokens enter by."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether it holds the head."""
        return self.stage == self.layout.pipeline - 1

    def at(
        self, *, data: int | None = None, tensor: int | None = None, stage: int | None = None
    ) -> int:
        """The rank with these coordinates, and its own where none is given."""
        data = self.data if data is None else data
        tensor = self.tensor if tensor is None else tensor
        stage = self.stage if stage is None else stage
        return (stage * self.layout.data + data) * self.layout.tensor + tensor

    def tensor_ranks(self) -> list[int]:
        """Those that hold the slices of the same matrices for the same share."""
        return [self.at(tensor=i) for i in range(self.layout.tensor)]

    def data_ranks(self) -> list[int]:
        """Those that hold the same weights."""
        return [self.at(data=i) for i in range(self.layout.data)]

    def pipeline_ranks(self) -> list[int]:
        """Those that the same rows pass through, in order."""
        return [self.at(stage=i) for i in range(self.layout.pipeline)]

    def end_ranks(self) -> list[int]:
        """The first and the last stage, which both hold a tied embedding."""
        return [self.at(stage=0), self.at(stage=self.layout.pipeline - 1)]

    def model_ranks(self) -> list[int]:
        """Those that together hold one whole model."""
        stages, slices = range(self.layout.pipeline), range(self.layout.tensor)
        return [self.at(stage=s, tensor=t) for s in stages for t in slices]


@dataclass(frozen=True)
class Piece:
    """A part of a tensor of the whole model, by Hugging Face name."""

    name: str
    """Its name in the whole model."""
    index: tuple[slice, ...]
    """Which part of it."""


def local_shape(shape: Architecture, place: Place) -> Architecture:
    """What one process builds: its layers, its heads, its inner features, its tokens."""
    tensor = place.layout.tensor
    return shape.model_copy(
        update={
            "layers": len(place.layout.layers(place.stage, shape.layers)),
            "heads": shape.heads // tensor,
            "kv_heads": shape.kv_heads // tensor,
            "intermediate_size": shape.intermediate_size // tensor,
            "vocab_size": shape.vocab_size // tensor,
        }
    )


BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
"""Divided over their outputs; their biases too."""
BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
"""Divided over their inputs; their biases are whole everywhere."""


def is_divided(name: str) -> bool:
    """Whether tensor processes hold different parts of a tensor; else all hold it whole."""
    return name.endswith(BY_COLUMNS) or name.rsplit(".", 2)[-2] in BY_ROWS


def pieces(shape: Architecture, place: Place) -> dict[str, Piece]:
    """Hugging Face name in the local model -> its part of the whole one, for all that is held.

    A tied embedding is held by the first and by the last stage.
    """
    local = local_shape(shape, place)
    begin = place.layout.layers(place.stage, shape.layers).start
    found = {}
    for name, size in local.tensor_shapes().items():
        if not _is_held(name, place, shape.tied_head):
            continue
        index = [slice(None)] * len(size)
        if is_divided(name):
            axis = 1 if name.endswith(BY_COLUMNS) else 0
            index[axis] = slice(place.tensor * size[axis], (place.tensor + 1) * size[axis])
        found[name] = Piece(_in_whole(name, begin), tuple(index))
    return found


def _is_held(name: str, place: Place, tied: bool) -> bool:
    if name.startswith("model.embed_tokens"):
        return place.first or (place.last and tied)
    if name.startswith(("model.norm", "lm_head")):
        return place.last
    return True


def _in_whole(name: str, begin: int) -> str:
    if not name.startswith("model.layers."):
        return name
    head, layer, rest = name[: len("model.layers")], *name[len("model.layers.") :].split(".", 1)
    return f"{head}.{int(layer) + begin}.{rest}"
