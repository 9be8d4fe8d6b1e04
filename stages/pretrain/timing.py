"""What a run's time went into, and how much of the device's peak a step uses."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stages.engine.mesh import Layout
from stages.pretrain.config import PretrainConfig
from stages.pretrain.estimate import Work, flops

SPIKE_DEVIATIONS, SPIKE_SHARE, SPIKE_AFTER = 6.0, 0.05, 20


@dataclass
class Times:
    """Seconds, of one step or of a whole run."""

    data: float = 0.0
    """Making the batches."""
    compute: float = 0.0
    """The step, less communication."""
    communication: float = 0.0
    """Collectives inside graphs as they took alone at the start, and all between graphs, where
    waiting for another process counts."""
    checkpoint: float = 0.0
    validation: float = 0.0

    def add(self, other: "Times") -> None:
        """Sum up."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def step(self) -> float:
        """What the step itself took."""
        return self.data + self.compute + self.communication

    def sentence(self) -> str:
        """All parts with their share."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        total = sum(parts.values())
        shares = (f"{name} {part:.1f} s ({part / total:.1%})" for name, part in parts.items())
        return f"{total:.1f} s: {', '.join(shares)}"


def step_flops(config: PretrainConfig, shape: Any) -> int:
    """Of a step's matrix products; what is computed twice counts once, as is customary for MFU."""
    batch = config.batch
    sequences = batch.sequences()
    return flops(Work(shape, Layout(), batch.sequence_length, sequences, sequences))


def is_spike(loss: float, before: list[float]) -> bool:
    """Whether a loss stands out above the last ones: by 6 of their deviations and by 5 percent."""
    if len(before) < SPIKE_AFTER:
        return False
    mean, deviation = np.mean(before), np.std(before)
    return bool(loss > max(mean + SPIKE_DEVIATIONS * deviation, mean * (1 + SPIKE_SHARE)))
