"""The account of the data before training: `data.json` and `data.md`."""

from pathlib import Path
from typing import Any

import numpy as np

from artifacts.tokenizer_files import write_object
from stages.finetune.dataset import NO_LOSS, Dataset

SHOWN = 5
"""Places named for each finding."""


def data_check(dataset: Dataset, max_length: int) -> dict[str, Any]:
    """Counts and places of everything a reader should know of the data, as plain JSON.

    Places are a file's name and line, so that the account is the same wherever the files lie.
    """
    lengths = np.array([len(example.ids) for example in dataset.examples], np.int64)
    learned = sum(int((example.labels != NO_LOSS).sum()) for example in dataset.examples)
    tokens = int(lengths.sum())
    return {
        "format": 1,
        "read": dataset.read,
        "kept": len(dataset.examples),
        "dropped": {
            reason: {"count": len(places), "first": _first(places)}
            for reason, places in sorted(dataset.dropped.items())
        },
        "kept_but_noted": {
            name: {"count": len(places), "first": _first(places)}
            for name, places in (
                ("duplicate of an earlier example", dataset.duplicates),
                ("same prompt as an earlier example, another answer", dataset.conflicts),
                ("prompt and answer would share a token", dataset.boundary_merges),
            )
        },
        "tokens": tokens,
        "tokens_with_loss": learned,
        "share_with_loss": learned / tokens if tokens else 0.0,
        "max_length": max_length,
        "length": {
            "shortest": int(lengths.min(initial=max_length)),
            "median": float(np.median(lengths)) if len(lengths) else 0.0,
            "95th percentile": float(np.percentile(lengths, 95)) if len(lengths) else 0.0,
            "longest": int(lengths.max(initial=0)),
        },
    }


def write_data_check(directory: Path, check: dict[str, Any]) -> None:
    """Write `data.json`, and the same for people as `data.md`."""
    write_object(directory / "data.json", check)
    (directory / "data.md").write_text(data_table(check), encoding="utf-8")


def data_table(check: dict[str, Any]) -> str:
    """The account as a Markdown table."""
    rows: list[tuple[str, Any, str]] = [("examples read", check["read"], "")]
    for reason, found in check["dropped"].items():
        rows.append((f"dropped: {reason}", found["count"], ", ".join(found["first"])))
    rows.append(("examples kept", check["kept"], ""))
    for name, found in check["kept_but_noted"].items():
        rows.append((f"of them: {name}", found["count"], ", ".join(found["first"])))
    if "held_out" in check:
        rows.append(("of them: held out, not learned from", check["held_out"], ""))
    if "rows" in check:
        rows.append(("rows they are packed into", check["rows"], ""))
    rows += [
        ("tokens", check["tokens"], ""),
        ("tokens with loss", check["tokens_with_loss"], f"{check['share_with_loss']:.1%}"),
    ]
    rows += [
        (f"length, {name} (tokens)", f"{value:g}", f"limit {check['max_length']}")
        for name, value in check["length"].items()
    ]
    lines = ["| what | count | first places, or share |", "|---|---|---|"]
    lines += [f"| {what} | {count} | {places} |" for what, count, places in rows]
    return "# Data\n\n" + "\n".join(lines) + "\n"


def _first(places: list[str]) -> list[str]:
    return [place.replace("\\", "/").rsplit("/", 1)[-1] for place in places[:SHOWN]]
