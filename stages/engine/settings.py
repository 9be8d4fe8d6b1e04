"""The training settings that stages share, as config sections. Light: no framework here."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.fields import Count

Precision = Literal["fp32", "fp16", "bf16"]
NO_BF16 = (
    "is 'bf16', in which MindSpore has no matrix product on CPU; fp32 would be right, or fp16, "
    "which is slower there"
)


class Section(BaseModel):
    """Base of a config section: unknown keys are errors, values do not change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class OptimizerConfig(Section):
    """AdamW with bias correction and a global-norm clip."""

    learning_rate: float = Field(default=3e-4, gt=0, lt=1)
    """Peak of the schedule. Small models take more: 4e-3 at a width of 128."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the gradient's running mean."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the squared gradient's running mean; 0.95 is customary for language models."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the squared gradient's running mean."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay, times the learning rate, on matrices only (no norms, no biases)."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Longest allowed norm of the whole gradient; longer ones are scaled down to it."""


class ScheduleConfig(Section):
    """Linear warm-up, then a half cosine down to a floor; counted in optimiser steps."""

    warmup_steps: Count = Field(default=100, ge=0)
    """Optimiser steps until the peak is reached."""
    floor_ratio: float = Field(default=0.1, ge=0, le=1)
    """The last step's learning rate, as a share of the peak."""


def learning_rate(step: int, steps: int, peak: float, schedule: ScheduleConfig) -> float:
    """Learning rate of optimiser step `step` of `steps`, the first being 1."""
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    rest = max(steps - schedule.warmup_steps, 1)
    done = min(max(step - schedule.warmup_steps, 0) / rest, 1.0)
    floor = schedule.floor_ratio
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))
