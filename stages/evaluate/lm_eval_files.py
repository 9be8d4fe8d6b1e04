"""Results and samples in lm-eval's own files, byte for byte the same in every run."""

import json
from pathlib import Path
from typing import Any

from lm_eval.utils import handle_non_serializable, sanitize_list


def write_lm_eval(
    folder: Path,
    results: dict[str, Any],
    samples: dict[str, list[dict[str, Any]]],
    about: dict[str, Any],
) -> None:
    """Write `results.json` and a `samples_<task>.jsonl` for each of lm-eval's tasks.

    `about` is what lm-eval's results say of the run: model, settings, versions. Its dates, times
    and host stay out, since they would make equal evaluations differ.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {**results, **about}, indent=2, ensure_ascii=False, default=handle_non_serializable
    )
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    for task, rows in samples.items():
        with (folder / f"samples_{task}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            for row in rows:
                file.write(
                    json.dumps(_sample(row), ensure_ascii=False, default=handle_non_serializable)
                    + "\n"
                )


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    """A sample as lm-eval writes it: arguments named, answers as text."""
    return {
        **row,
        "arguments": {
            f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(arguments)}
            for i, arguments in enumerate(row["arguments"])
        },
        "resps": sanitize_list(row["resps"]),
        "filtered_resps": sanitize_list(row["filtered_resps"]),
        "target": str(row["target"]),
    }
