"""What can be said about an import."""

from pathlib import Path

from artifacts.errors import BadInput
from artifacts.fields import ByteSize
from artifacts.tokenizer_files import KNOWN_FILES
from artifacts.weights import Weights
from stages.spec import StageConfig, StageSpec


class ImportConfig(StageConfig):
    """Where the model lies."""

    directory: Path
    """A model in Hugging Face's form: config.json, safetensors in one file or in shards, and
    tokenizer.json or tokenizer.model."""
    max_shard_size: ByteSize = "2GB"
    """Largest weight file, such as 500MB or 2GB (MB = 10^6 bytes, MiB = 2^20)."""

    def source_files(self) -> list[Path]:
        """Every file that is read. Raises BadInput if there are no weights."""
        if not self.directory.is_dir():
            raise BadInput(f"import.directory: {self.directory} is no directory")
        names = ("config.json", "generation_config.json", *KNOWN_FILES)
        beside = [path for name in names if (path := self.directory / name).is_file()]
        return beside + Weights(self.directory).files()


SPEC = StageSpec(
    name="import",
    makes="checkpoint",
    config=ImportConfig,
    inputs={},
    code_version=1,
)
