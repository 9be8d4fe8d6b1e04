"""What can be said about taking over an adapter."""

from pathlib import Path

from artifacts.adapter import BASE, CONFIG, TENSORS
from artifacts.errors import BadInput
from stages.spec import Input, StageConfig, StageSpec


class AdoptConfig(StageConfig):
    """Where the adapter lies, and whether it may come from another base."""

    directory: Path
    """An adapter as peft writes it: adapter_config.json and adapter_model.safetensors."""
    force: bool = False
    """Whether to bind it to this base although it says that it belongs to another. Recorded."""

    def source_files(self) -> list[Path]:
        """The adapter's files. Raises BadInput if there is no such directory."""
        if not self.directory.is_dir():
            raise BadInput(f"adopt.directory: {self.directory} is no directory")
        names = (CONFIG, TENSORS, BASE)
        return [path for name in names if (path := self.directory / name).is_file()]


SPEC = StageSpec(
    name="adopt",
    makes="adapter",
    config=AdoptConfig,
    inputs={"model": Input(("hf-model", "checkpoint"))},
    code_version=1,
)
