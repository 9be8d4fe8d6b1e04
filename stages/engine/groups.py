"""Who talks to whom: the communication groups of one process in its layout.

Collectives inside graphs are MindSpore's `ops`, addressed by a group's name. What passes between
two graphs (a pipeline's activations) goes through `mindspore.mint.distributed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mindspore
import numpy as np
from mindspore import Tensor

from stages.engine.mesh import Layout, Place


@dataclass(frozen=True)
class Mesh:
    """A process's place, and the names of its groups; None where it would be alone in one."""

    place: Place = field(default_factory=Place)
    data: str | None = None
    tensor: str | None = None
    pipeline: str | None = None
    ends: str | None = None
    """First and last stage of a pipeline, on both of them."""
    model: str | None = None


ALONE = Mesh()


def data_mesh(processes: int) -> Mesh:
    """Data parallelism alone, of processes that have joined."""
    if processes == 1:
        return ALONE
    from mindspore.communication import get_rank

    return mesh(Place(Layout(data=processes), get_rank()))


def mesh(place: Place) -> Mesh:
    """Make the groups of a process that has joined (`parallel.join`); alone it needs none."""
    if place.layout.size == 1:
        return ALONE
    # MindSpore's send looks the rank up under the name of another backend's world group.
    from mindspore.mint.distributed import distributed

    distributed._GROUP_RANK_CACHE["hccl_world_group"] = place.rank
    at_an_end = place.first or place.last
    return Mesh(
        place,
        data=_group("data", place, place.data_ranks()),
        tensor=_group("tensor", place, place.tensor_ranks()),
        pipeline=_group("pipeline", place, place.pipeline_ranks()),
        ends=_group("ends", place, place.end_ranks()) if at_an_end else None,
        model=_group("model", place, place.model_ranks()),
    )


def _group(name: str, place: Place, ranks: Sequence[int]) -> str | None:
    from mindspore.communication import GlobalComm, create_group

    ranks = sorted(set(ranks))
    if len(ranks) == 1:
        return None
    if len(ranks) == place.layout.size:
        return str(GlobalComm.WORLD_COMM_GROUP)
    group = f"{name}-{'-'.join(map(str, ranks))}"
    create_group(group, ranks)
    return group


def send(x: Tensor, to_rank: int, group: str) -> None:
    """Send a tensor on; returns before it has arrived."""
    from mindspore.mint import distributed

    distributed.send(x, dst=to_rank, group=group)


def receive(shape: tuple[int, ...], from_rank: int, group: str) -> Tensor:
    """Wait for a float32 tensor of this shape."""
    from mindspore.mint import distributed

    x = Tensor(np.zeros(shape, np.float32))
    distributed.recv(x, src=from_rank, group=group)
    return x


def summed(x: np.ndarray, group: str | None) -> np.ndarray:
    """The float32 sum over a group, outside of any graph."""
    if group is None:
        return x
    from mindspore.mint import distributed

    held = Tensor(np.ascontiguousarray(x, np.float32), mindspore.float32)
    distributed.all_reduce(held, group=group)
    return np.array(held.asnumpy())


def summed_over_all(mesh: Mesh, number: float) -> float:
    """The float32 sum over every process; all must ask."""
    from mindspore.communication import GlobalComm

    if mesh.place.layout.size == 1:
        return number
    return float(summed(np.array([number], np.float32), str(GlobalComm.WORLD_COMM_GROUP))[0])


def tell_all(mesh: Mesh, whether: bool) -> bool:
    """Whether any process says so; all must ask."""
    return bool(summed_over_all(mesh, float(whether)))


def wait_for_all(mesh: Mesh) -> None:
    """Go on when every process has come here."""
    summed_over_all(mesh, 0.0)
