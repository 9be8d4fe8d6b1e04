"""Which trainer a process needs."""

from artifacts.architecture import Architecture
from stages.engine.groups import Mesh
from stages.engine.mesh import local_shape
from stages.engine.model import Decoder
from stages.engine.pipeline import PipelineTrainer
from stages.engine.precision import LossScale
from stages.engine.recompute import RecomputeTrainer
from stages.engine.settings import OptimizerConfig
from stages.engine.shards import is_counted
from stages.engine.training import Trainer


def make_trainer(
    shape: Architecture,
    decoder: Decoder,
    optimizer: OptimizerConfig,
    mesh: Mesh,
    loss_scale: LossScale | None = None,
    recompute: bool = False,
) -> Trainer:
    """The trainer of this process's part of a model of `shape`."""
    local, counted = local_shape(shape, mesh.place), is_counted(shape, mesh.place)
    if mesh.pipeline is not None:
        return PipelineTrainer(local, decoder, optimizer, mesh, counted, loss_scale)
    if recompute:
        return RecomputeTrainer(local, decoder, optimizer, mesh, counted, loss_scale)
    return Trainer(local, decoder, optimizer, mesh=mesh, counted=counted, loss_scale=loss_scale)
