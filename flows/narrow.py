"""Markdown for a terminal: tables without empty columns; for too wide ones, sentences or lists."""

import re
from itertools import groupby

BORDER = 3
"""Characters that a drawn table takes beside each cell's text."""


def narrowed(text: str, width: int) -> str:
    """`text` with every table such that it can be read in `width` characters.

    A list below a too wide table says the same row by row, so it stands alone; without one the rows
    become a list.
    """
    blocks = [
        (is_table, list(lines))
        for is_table, lines in groupby(text.split("\n"), lambda line: line.startswith("|"))
    ]
    shown: list[str] = []
    for i, (is_table, lines) in enumerate(blocks):
        if not is_table:
            shown += lines
            continue
        below = blocks[i + 1][1] if i + 1 < len(blocks) else []
        listed = next(filter(None, below), "").startswith("- ")
        shown += _table(lines, width, listed)
    return "\n".join(shown)


def _table(lines: list[str], width: int, listed: bool) -> list[str]:
    header, ruler, *rows = (_cells(line) for line in lines)
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    header, ruler, *rows = ([row[i] for i in kept] for row in (header, ruler, *rows))
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    if sum(widths) + BORDER * len(widths) <= width:
        return [f"| {' | '.join(row)} |" for row in (header, ruler, *rows) if row]
    return [] if listed else [_item(header, row) for row in rows]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _item(header: list[str], row: list[str]) -> str:
    named = [f"{name} {cell}" for name, cell in zip(header[1:], row[1:], strict=True) if cell]
    return f"- {row[0]}: {', '.join(named)}"
