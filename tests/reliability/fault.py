"""One row of the table: a fault, what the user saw, what was lost, and how it went on."""

from dataclasses import dataclass

import pytest

ROWS: list["Fault"] = []
"""Every row, in the order in which the test modules are imported."""


@dataclass(frozen=True)
class Fault:
    """What a test injects from outside, and the words it asserts."""

    area: str
    injected: str
    """In words, for people; unique."""
    saw: str
    """A piece of what the user saw; empty where nobody was left to say anything."""
    lost: str
    went_on: str
    """A piece of what the same command said afterwards; empty where there is nothing to go on."""

    def row(self) -> str:
        """The row in Markdown."""
        saw = f"`{self.saw}`" if self.saw else "nothing: it was killed"
        went_on = f"`{self.went_on}`" if self.went_on else "—"
        cells = (self.injected, saw, self.lost, went_on)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def told(area: str, injected: str, *, saw: str, lost: str = "nothing", went_on: str = "") -> Fault:
    """A row, for the documentation too."""
    fault = Fault(area, injected, saw, lost, went_on)
    ROWS.append(fault)
    return fault


def tells(*args: str, **words: str) -> pytest.MarkDecorator:
    """Give a test its row as the argument `fault`."""
    fault = told(*args, **words)
    return pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.injected)])
