"""One line of the table."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.bad_input.bench import Bench, Spoil


@dataclass(frozen=True)
class Case:
    """Something wrong that is handed in, and what comes of it."""

    area: str
    """The stage, or what of the command line it is about."""
    handed: str
    """In words, for people; unique within its area."""
    says: tuple[str, ...]
    """Pieces of what the user sees; the first is the heart of it. `{root}` stands for the place."""
    command: Callable[[Bench], list[str]]
    spoil: tuple[Spoil, ...] = ()
    code: int = 2

    @property
    def name(self) -> str:
        return f"{self.area}: {self.handed}"


def at(stage: str, handed: str, says: str | tuple[str, ...], *spoil: Spoil, code: int = 2) -> Case:
    """A stage's process gets its right request, but for what `spoil` does to it."""
    says = (says,) if isinstance(says, str) else says
    return Case(stage, handed, says, lambda bench: bench.stage(stage), spoil, code)


def typed(
    area: str,
    handed: str,
    says: str | tuple[str, ...],
    line: str | list[str],
    *spoil: Spoil,
    code: int = 2,
) -> Case:
    """`mindcycle LINE` is typed; a list where a part holds spaces."""
    says = (says,) if isinstance(says, str) else says
    arguments = line.split() if isinstance(line, str) else line
    return Case(area, handed, says, lambda bench: bench.mindcycle(*arguments), spoil, code)


def config(handed: str, says: str | tuple[str, ...], *overrides: str) -> Case:
    """`mindcycle check` looks at the tiny run's config with these values replaced."""
    arguments = ["check", "run.yaml"]
    for override in overrides:
        arguments += ["--set", override]
    return typed("config", handed, says, arguments)
