"""Rows as aligned columns: whole, so that they can be searched and copied."""

import shutil
import sys
from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Every column as wide as its widest cell. On a terminal a line ends with the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = []
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        lines.append(cut("  ".join(cells).rstrip(), width))
    return "\n".join(lines)


def cut(text: str, width: int | None) -> str:
    """`text` in at most `width` characters."""
    return text if width is None or len(text) <= width else text[: width - 1] + "…"
