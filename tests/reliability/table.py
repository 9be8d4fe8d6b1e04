"""All rows, as docs/reliability-faults.md has them: `python -m tests.reliability.table`."""

import importlib
from pathlib import Path

from tests.reliability.fault import ROWS, Fault

HEAD = (
    "| what was injected | what the user saw | what was lost | how it went on |\n|---|---|---|---|"
)


def faults() -> list[Fault]:
    """Every row of every test module here."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"{__package__}.{path.stem}")
    return ROWS


def tables() -> str:
    """A table an area."""
    areas: dict[str, list[str]] = {}
    for fault in faults():
        areas.setdefault(fault.area, []).append(fault.row())
    return "\n".join("\n".join([f"## {area}\n", HEAD, *rows, ""]) for area, rows in areas.items())


if __name__ == "__main__":
    print(tables())
