"""The whole table."""

from tests.bad_input import command_line, interchange, models, requests, scoring, training
from tests.bad_input.case import Case

CASES: list[Case] = [
    *command_line.CASES,
    *requests.CASES,
    *training.CASES,
    *models.CASES,
    *interchange.CASES,
    *scoring.CASES,
]


def rows() -> list[tuple[str, str]]:
    """Every case as a row of the documentation's tables: its area, and the row in Markdown."""
    return [(case.area, _row(case)) for case in CASES]


def _row(case: Case) -> str:
    sentence = case.says[0].replace("{root}/", "").strip(" ;,")
    cells = (case.handed, f"`{sentence}`", str(case.code))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tables() -> str:
    """All rows, a table an area."""
    areas: dict[str, list[str]] = {}
    for area, row in rows():
        areas.setdefault(area, []).append(row)
    head = "| what was handed in | what the user sees, in part | exit |\n|---|---|---|"
    return "\n".join(
        "\n".join([f"### {area}\n", head, *found, ""]) for area, found in areas.items()
    )


if __name__ == "__main__":
    print(tables())
