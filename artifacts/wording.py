"""Words for people. Light to import."""


def counted(number: int, word: str) -> str:
    """`1 step`, `2 steps`, `1,024 steps`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
