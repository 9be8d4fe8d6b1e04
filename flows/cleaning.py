"""`mindcycle gc`: artifacts that nothing needs are shown, and removed if asked.

Needed are: every release; what a channel stands for, and what one rollback would bring back; what a
running process uses; what is named with --keep; and all that these were made from, so that
`mindcycle verify` still walks back to the data. Half-done work is needed by a running process, or
by a config that would go on with it.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from artifacts.channels import CHANNELS, history, line_of
from artifacts.claims import no_new_claims
from artifacts.errors import BadInput, StageFailed
from artifacts.manifest import Manifest
from artifacts.store import (
    artifact_path,
    check_store,
    fetch_path,
    find_artifact,
    list_artifacts,
    work_path,
)
from flows.chain import Work
from flows.columns import columns
from flows.inspection import size_text
from flows.lifecycle import load_work
from stages.plan import plan
from stages.spec import Request

TRASH = ".trash"
CONFIGS = (".yaml", ".yml")
GB = 1e9


@dataclass(frozen=True)
class Item:
    """One directory of the store: an artifact, or half-done work."""

    path: Path
    size: int
    """Bytes."""
    when: str
    """ISO 8601, UTC: when it was finished, or written to last."""
    manifest: Manifest | None
    """None for half-done work."""


def collect_garbage(
    store: Path, keep: Sequence[str], budget_gb: float | None, remove: bool
) -> None:
    """Show what nothing needs, and with `remove` take it away.

    `keep` names configs and artifacts. With a budget only as much goes as brings the store below
    it, what was used longest ago first. Raises BadInput before anything is removed, StageFailed if
    the budget cannot be kept.
    """
    check_store(store)
    store = store.resolve()
    named = {path: f"--keep {text}" for text in keep for path in _named(text, store)}
    with no_new_claims(store) as claimed:
        items = _items(store)
        reasons = _needed(items, store, named, claimed)
        unneeded = _oldest_first([item for item in items if item.path not in reasons], store)
        excess = sum(item.size for item in items) - (budget_gb or 0) * GB
        doomed = unneeded if budget_gb is None else _enough(unneeded, excess)
        if remove:
            _move_to_trash(store, doomed)
    _show(items, reasons, doomed, remove)
    if remove:
        shutil.rmtree(store / TRASH, ignore_errors=True)
    if (over := excess - sum(item.size for item in doomed)) > 0 and budget_gb is not None:
        raise StageFailed(
            f"{size_text(over)} more than the budget are needed; remove a release that nobody uses "
            "by hand, then what only it needs goes with the next gc"
        )


def expected_paths(work: Work) -> list[Path]:
    """Where the artifacts of a run stand or will stand, as far as that is known before it.

    A step whose inputs are not there yet has no identity yet. Raises BadInput.
    """
    there: dict[str, Path] = {}
    paths = []
    for step in work.steps:
        made = {
            role: there.get(source)
            for role, source in step.inputs.items()
            if role not in step.given
        }
        if None in made.values():
            continue
        request = Request(
            stage=step.spec.name,
            config=work.configs[step.spec.name].model_dump(mode="json"),
            inputs={role: str(path) for role, path in {**made, **step.given}.items()},
            store=str(work.store),
        )
        final = plan(step.spec, request, check_inputs=False).final
        paths.append(final)
        if final.is_dir():
            there[step.name] = final
    return paths


def _named(text: str, store: Path) -> list[Path]:
    """The artifacts that a --keep names. Raises BadInput."""
    if Path(text).suffix in CONFIGS:
        return expected_paths(load_work(Path(text), (), store))
    return [find_artifact(store, text).resolve()]


def _items(store: Path) -> list[Item]:
    """Everything that could be removed. Raises BadInput if a manifest cannot be read."""
    try:
        artifacts = list_artifacts(store)
    except BadInput as error:
        more = "what it needs is unknown, so nothing is removed; remove it by hand if it is broken"
        raise BadInput(*error.problems, more) from None
    found = [
        Item(path, sum(file.size for file in manifest.files), manifest.finished, manifest)
        for path, manifest in artifacts
    ]
    half_done = [*store.glob("*/.*.partial"), *store.glob("*/.*.fetched")]
    return found + [item for path in sorted(half_done) if (item := _half_done(path))]


def _half_done(path: Path) -> Item | None:
    """Half-done work; None if it is gone. Whoever is at it may rename and remove files of it."""
    stats: list[os.stat_result] = []
    for folder, _, names in os.walk(path):  # which passes over a directory that is gone
        for entry in (folder, *(os.path.join(folder, name) for name in names)):
            with suppress(FileNotFoundError):
                stats.append(os.stat(entry))
    if not stats:
        return None
    last = datetime.fromtimestamp(max(stat.st_mtime for stat in stats), timezone.utc)
    return Item(path, sum(s.st_size for s in stats), last.isoformat(timespec="seconds"), None)


def _needed(
    items: list[Item], store: Path, named: dict[Path, str], claimed: set[str]
) -> dict[Path, str]:
    """Directory -> why it stays."""
    reasons = dict(named)
    for item in items:
        if item.manifest and item.manifest.kind == "release":
            reasons.setdefault(item.path, "release")
    for channel in CHANNELS:
        for move in line_of(history(store, channel))[-2:]:
            path = artifact_path(store, move.kind, move.identity)
            reasons.setdefault(path, channel)
    for name in claimed:
        reasons.setdefault(store / name, "a run")
    # What is being made, or would be, is written beside its final place.
    for path, reason in list(reasons.items()):
        for beside in (work_path, fetch_path):
            reasons[beside(store, path.parent.name, path.name)] = reason
    manifests = {item.path: item.manifest for item in items if item.manifest}
    left = list(reasons)
    while left:
        path = left.pop()
        if manifest := manifests.get(path):
            for source in _inputs(manifest, store):
                if source not in reasons:
                    reasons[source] = reasons[path]
                    left.append(source)
    return reasons


def _inputs(manifest: Manifest, store: Path) -> list[Path]:
    return [artifact_path(store, entry.kind, entry.identity) for entry in manifest.inputs.values()]


def _oldest_first(items: list[Item], store: Path) -> list[Item]:
    """Sorted by when they were used last, as an input too; what was made before what it is from."""
    used = {item.path: item.when for item in items}
    depth = {item.path: 0 for item in items}
    for item in sorted(items, key=lambda item: item.when, reverse=True):
        for path in _inputs(item.manifest, store) if item.manifest else ():
            if path in used:
                used[path] = max(used[path], used[item.path])
                depth[path] = max(depth[path], depth[item.path] + 1)
    return sorted(items, key=lambda item: (used[item.path], depth[item.path], str(item.path)))


def _enough(items: list[Item], excess: float) -> list[Item]:
    """The first ones whose sizes add up to `excess` bytes."""
    chosen: list[Item] = []
    for item in items:
        if excess <= 0:
            break
        chosen.append(item)
        excess -= item.size
    return chosen


def _move_to_trash(store: Path, items: list[Item]) -> None:
    """One rename each, so that nobody ever sees half of an artifact."""
    if items:
        (store / TRASH).mkdir(exist_ok=True)
    for item in items:
        with suppress(FileNotFoundError):
            item.path.rename(store / TRASH / f"{item.path.parent.name}-{item.path.name}")


def _show(items: list[Item], reasons: dict[Path, str], doomed: list[Item], remove: bool) -> None:
    verb = "removed" if remove else "would remove"
    rows = [("", "kind", "identity", "size", "last")]
    for item in doomed:
        name = item.path.name if item.manifest else f"{item.path.name} (half done)"
        rows.append((verb, item.path.parent.name, name, size_text(item.size), item.when))
    if doomed:
        print(columns(rows) + "\n")
    kept: dict[str, list[int]] = {}
    for item in items:
        if item not in doomed:
            kept.setdefault(reasons.get(item.path, "the budget"), []).append(item.size)
    for reason, sizes in sorted(kept.items()):
        print(f"kept for {reason}: {len(sizes)}, {size_text(sum(sizes))}")
    print(f"{verb}: {len(doomed)}, {size_text(sum(item.size for item in doomed))}")
    if doomed and not remove:
        print("Nothing was removed. The same command with --yes does it.")
