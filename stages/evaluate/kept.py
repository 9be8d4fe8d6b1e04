"""Finished batches of a running evaluation, kept so that a killed one goes on where it stopped.

Whole batches are kept, not single requests: a batch cut differently the second time could differ in
the last bit, and the report would not be identical.
"""

import json
import os
from pathlib import Path
from typing import Any

from artifacts.digest import sha256_json

FILE = "finished.jsonl"


class Kept:
    """A file of results by key, a line each with its own hash.

    What does not fit its hash, such as a line that was being written when the process died, ends
    the file: it and what follows is computed again.
    """

    def __init__(self, path: Path):
        self._found: dict[str, Any] = {}
        whole = 0
        if path.is_file():
            with path.open("rb") as file:
                for line in file:
                    entry = _entry(line)
                    if entry is None:
                        break
                    self._found[entry["key"]] = entry["result"]
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
        entry = {"key": key, "result": result}
        line = json.dumps(entry | {"sha256": sha256_json(entry)}, ensure_ascii=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self._found[key] = result

    def remove(self) -> None:
        """Close and delete the file: the evaluation is done."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _entry(line: bytes) -> dict[str, Any] | None:
    """What a line holds, or None if it is not whole."""
    try:
        entry: dict[str, Any] = json.loads(line)
        whole = line.endswith(b"\n") and entry.pop("sha256") == sha256_json(entry)
        return entry if whole and entry.keys() == {"key", "result"} else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
