"""The gate as a process of its own: exit 0, 3 and 2, and the decision's place in the chain."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from artifacts.decision import read_decision
from artifacts.lineage import verify_chain
from artifacts.manifest import read_manifest
from tests.reports import report_content, write_artifact

TASK = "world_en"


def gate(tmp_path: Path, at_least: float, **changes: Any) -> subprocess.CompletedProcess[str]:
    store = tmp_path / "store"
    candidate = store / "eval-report" / ("c" * 16)
    if not candidate.exists():
        write_artifact(store, report_content({TASK: [True] * 90 + [False] * 10}), "c")
        write_artifact(store, report_content({TASK: [True] * 30 + [False] * 70}), "b")
    request = {
        "stage": "gate",
        "config": {
            "rules": [
                {"rule": "floor", "task": TASK, "at_least": at_least},
                {"rule": "gain_over_base", "task": TASK},
            ]
        },
        "inputs": {
            "candidate": str(candidate),
            "base": str(store / "eval-report" / ("b" * 16)),
        },
        "store": str(store),
    } | changes
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request))
    return subprocess.run(
        [sys.executable, "-m", "stages.gate", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_approved_ends_with_0_and_is_part_of_the_chain(tmp_path: Path) -> None:
    done = gate(tmp_path, 0.8)
    assert done.returncode == 0, done.stderr
    assert "# Approved" in done.stdout
    (decision,) = (tmp_path / "store/decision").glob("[!.]*")
    assert read_decision(decision).outcome == "approved"
    assert verify_chain(decision).problems == []
    assert read_manifest(decision).inputs.keys() == {"candidate", "base"}
    judged = read_decision(decision).candidate
    assert judged.report_digest == read_manifest(decision).inputs["candidate"].digest


def test_rejected_ends_with_3_every_time(tmp_path: Path) -> None:
    first, again = gate(tmp_path, 0.99), gate(tmp_path, 0.99)
    assert (first.returncode, again.returncode) == (3, 3), first.stderr + again.stderr
    assert "# Rejected" in first.stdout
    assert "done already" in again.stdout


@pytest.mark.parametrize("config", [{"rules": []}, {}])
def test_a_gate_without_rules_ends_with_2(tmp_path: Path, config: dict[str, Any]) -> None:
    done = gate(tmp_path, 0.8, config=config)
    assert done.returncode == 2
    assert done.stderr.startswith("gate: gate.rules: ")
    assert not (tmp_path / "store/decision").exists()
