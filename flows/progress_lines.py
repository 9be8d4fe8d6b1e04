"""What stages say of their progress, read back from their lines. Light: no Prefect here."""

import re
from dataclasses import dataclass

LINE = re.compile(r"(?P<label>\S+)  (?P<done>\d+)/(?P<total>\d+) (?P<unit>[a-z]+)(?P<rest>.*)")
"""What `stages.progress.Progress` prints."""


@dataclass(frozen=True)
class Moment:
    """One line of progress."""

    done: int
    total: int
    unit: str
    values: list[str]
    """`loss 5.3254`, `34 steps/s`, `0:12 left`, as the stage printed them."""
    loss: float | None

    @property
    def by_weight(self) -> list[str]:
        """`values`, those first that a short line should keep: time left, loss, speed."""
        return sorted(self.values, key=_weight)


def _weight(value: str) -> int:
    if value.endswith(" left"):
        return 0
    if value.startswith("loss "):
        return 1
    return 2 if value.startswith("tokens/s ") else 3


def parse_progress(text: str) -> Moment | None:
    """A stage's line as progress, or None if it is something else."""
    found = LINE.fullmatch(text.strip())
    if found is None or int(found["total"]) == 0:
        return None
    values = [value for value in found["rest"].split("  ") if value]
    loss = next((value.partition(" ")[2] for value in values if value.startswith("loss ")), None)
    try:
        number = None if loss is None else float(loss)
    except ValueError:
        number = None
    return Moment(int(found["done"]), int(found["total"]), found["unit"], values, number)
