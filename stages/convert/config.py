"""What can be said about a conversion."""

from artifacts.fields import ByteSize, DType
from stages.spec import Input, StageConfig, StageSpec


class ConvertConfig(StageConfig):
    """How a checkpoint becomes a Hugging Face directory."""

    dtype: DType = "fp32"
    """Type of the stored weights. fp32 keeps every bit of the checkpoint."""
    max_shard_size: ByteSize = "2GB"
    """Largest weight file, such as 500MB or 2GB (MB = 10^6 bytes, MiB = 2^20). 2GB is what every
    hub and file system takes."""
    cut_padding: bool = False
    """Whether rows of the vocabulary beyond the tokenizer's last token are padding and are cut.
    False, because only whoever trained the model knows that nothing was learned there."""


SPEC = StageSpec(
    name="convert",
    makes="hf-model",
    config=ConvertConfig,
    inputs={"checkpoint": Input(("checkpoint",))},
    code_version=1,
)
