from pathlib import Path

from artifacts.errors import BadInput
from stages.spec import StageConfig, StageSpec


class GrowConfig(StageConfig):
    text: str = "seed"
    """What is written."""
    lines: int = 1
    """Lines printed."""
    mode: str = "work"
    """work, fail, refuse, kill, sleep or breed (leaves children behind, then sleeps)."""
    source: Path | None = None
    """A file whose text is added."""

    def source_files(self) -> list[Path]:
        if self.source is None:
            return []
        if not self.source.is_file():
            raise BadInput(f"source: {self.source} is missing; name a text file")
        return [self.source]


SPEC = StageSpec(name="grow", makes="corpus", config=GrowConfig, inputs={}, code_version=1)
