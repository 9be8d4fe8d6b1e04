"""What can be said about a merge."""

from artifacts.fields import ByteSize
from stages.spec import Input, StageConfig, StageSpec


class MergeConfig(StageConfig):
    """How an adapter goes into its base. The result keeps the base's dtype."""

    max_shard_size: ByteSize = "2GB"
    """Largest weight file, such as 500MB or 2GB (MB = 10^6 bytes, MiB = 2^20). 2GB is what every
    hub and file system takes."""


SPEC = StageSpec(
    name="merge",
    makes="hf-model",
    config=MergeConfig,
    inputs={"model": Input(("hf-model", "checkpoint")), "adapter": Input(("adapter",))},
    code_version=1,
)
