"""What a stage is: its name, what it takes, what it makes. Light to import: no framework here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from artifacts.manifest import Kind, Manifest


def when_set(default: Any, **constraints: Any) -> Any:
    """A field that came later: at its default it is left out of the dump, hence of the identity.

    What was made before it was there keeps its name, and is found.
    """
    return Field(default, exclude_if=lambda value: value == default, **constraints)


class StageConfig(BaseModel):
    """Base of every stage's config: unknown keys are errors, values do not change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def source_files(self) -> list[Path]:
        """Files outside the store that go into the work; their hashes are part of its identity.

        Raises BadInput when one is missing or a pattern fits nothing.
        """
        return []

    def look_into_sources(self) -> None:
        """Read the source files as far as it is quick: what is wrong there is said before any work.

        They are there already. Raises BadInput with every problem.
        """

    def seeds(self) -> dict[str, int]:
        """The seeds this config fixes, by name, for the manifest."""
        return {}

    def result_config(self) -> dict[str, Any]:
        """What of it decides about the result: goes into the identity and the manifest."""
        return self.model_dump(mode="json")

    def helps(self) -> bool:
        """Whether the stage here only lends processes to another machine's, which writes."""
        return False

    def needs_approval(self) -> bool:
        """Whether a person must approve the artifact before anything is made from it."""
        return False


@dataclass(frozen=True)
class Input:
    """One input role of a stage."""

    kinds: tuple[Kind, ...]
    required: bool = True


@dataclass(frozen=True)
class StageSpec:
    """Everything about a stage that can be said without running it."""

    name: str
    makes: Kind
    config: type[StageConfig]
    inputs: Mapping[str, Input]
    code_version: int
    """Raise it when the same config and inputs would give other bytes than before."""
    resumes: bool = False
    """Whether a killed run goes on from its work directory; otherwise the directory is cleared."""
    trains: bool = False
    """Whether it takes all cores for long: two such stages on one machine take turns."""
    exit_code: Callable[[Manifest], int] = field(default=lambda manifest: 0)
    """The process's exit code once the artifact is whole."""


@dataclass(frozen=True)
class Job:
    """What a stage's `run(job)` gets."""

    config: Any
    inputs: Mapping[str, Path]
    work: Path
    """The directory to write into. It becomes the artifact when `run` returns."""
    identity: str
    final: Path | None = None
    """Where the artifact will stand."""


@dataclass(frozen=True)
class Request:
    """One stage to run: the JSON that `python -m stages.<name> REQUEST.json` reads."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    stage: str
    config: dict[str, Any]
    inputs: dict[str, str]
    store: str
