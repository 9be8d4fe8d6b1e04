"""Rows as aligned columns: whole, so that they can be searched and copied."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Every column as wide as its widest cell. On a terminal a line ends with the terminal."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = []
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        lines.append(cut("  ".join(cells).rstrip(), width))
    return "\n".join(lines)


def visible(text: str) -> str:
    """`text` without what would move a terminal's cursor or change its title."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def cut(text: str, width: int | None) -> str:
    """`text` in at most `width` characters."""
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def nearby(path: Path) -> str:
    """A path as seen from the current directory, if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
