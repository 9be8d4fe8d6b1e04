"""Finished batches of a running evaluation, kept so that a killed one goes on where it stopped.

Whole batches are kept, not single requests: a batch cut differently the second time could differ in
the last bit, and the report would not be identical.
"""

import json
import os
from pathlib import Path
from typing import Any

FILE = "finished.jsonl"


class Kept:
    """A file of results by key; a line that was being written when the process died is ignored."""

    def __init__(self, path: Path):
        self._found: dict[str, Any] = {}
        whole = 0
        if path.is_file():
            with path.open("rb") as file:
                for line in file:
                    try:
                        entry = json.loads(line)
                        self._found[entry["key"]] = entry["result"]
                    except (ValueError, KeyError, TypeError):
                        break
                    if not line.endswith(b"\n"):
                        break
                    whole += len(line)
        self._path = path
        self._file = path.open("ab")
        os.truncate(path, whole)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Any:
        """The result kept under `key`, or None."""
        return self._found.get(key)

    def put(self, key: str, result: Any) -> None:
        """Keep a result (plain JSON). Floats come back bit for bit."""
        line = json.dumps({"key": key, "result": result}, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self._found[key] = result

    def remove(self) -> None:
        """Close and delete the file: the evaluation is done."""
        self._file.close()
        self._path.unlink(missing_ok=True)
