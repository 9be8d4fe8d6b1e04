"""What can be said about a merge."""

import math

from pydantic import field_validator

from artifacts.fields import ByteSize
from stages.spec import Input, StageConfig, StageSpec, when_set

ADAPTERS = ("adapter", "adapter_2", "adapter_3", "adapter_4")
"""Roles of the adapters: one, or a weighted sum of up to four."""


class MergeConfig(StageConfig):
    """How adapters go into their base. The result keeps the base's dtype."""

    max_shard_size: ByteSize = "2GB"
    """Largest weight file, such as 500MB or 2GB (MB = 10^6 bytes, MiB = 2^20). 2GB is what every
    hub and file system takes."""
    weights: tuple[float, ...] = when_set(())
    """Factor on the change of each adapter, in the order of the inputs adapter, adapter_2, ...
    Default: 1 each."""
    force_base: bool = when_set(False)
    """Whether an adapter may say that it belongs to another base, or nothing of it. The merged
    model's merge.json then says so. Default false."""

    @field_validator("weights")
    @classmethod
    def _each_has_one(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(not math.isfinite(each) or each == 0 for each in value):
            raise ValueError("must be finite numbers other than 0")
        return value


SPEC = StageSpec(
    name="merge",
    makes="hf-model",
    config=MergeConfig,
    inputs={"model": Input(("hf-model", "checkpoint"))}
    | {role: Input(("adapter",), required=role == ADAPTERS[0]) for role in ADAPTERS},
    code_version=2,
)
