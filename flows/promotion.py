"""`mindcycle approve`, `promote`, `rollback`, `channels` and `compare`."""

from collections.abc import Sequence
from pathlib import Path

from artifacts.approval import give_approval
from artifacts.channels import CHANNELS, Move, channel_name, history, promote, roll_back
from artifacts.errors import BadInput
from artifacts.manifest import read_manifest
from artifacts.store import check_store, find_artifact
from flows.columns import columns, visible
from flows.console import print_markdown


def print_approval(reference: str, store: Path, approved: bool, why: str, who: str | None) -> None:
    """Answer a decision that waits for a person. Raises BadInput."""
    path = find_artifact(store, reference)
    try:
        # Where the decision stands is where a run looks for the answer.
        home = path.resolve().parent.parent
        given = give_approval(home, read_manifest(path), approved, why, who)
    except BadInput as error:
        raise BadInput(*(f"{path}: {problem}" for problem in error.problems)) from None
    said = "approved" if given.approved else "turned down"
    print(visible(f"{path}: {said} by {given.who} at {given.when}: {given.why}"))


def print_promotion(reference: str, store: Path, to: str, why: str, who: str | None) -> None:
    """Move a channel to an artifact. Raises BadInput."""
    channel = channel_name(to)
    _print_move(channel, promote(store, channel, find_artifact(store, reference), why, who))


def print_rollback(name: str, store: Path, why: str, who: str | None) -> None:
    """Move a channel back. Raises BadInput."""
    channel = channel_name(name)
    _print_move(channel, roll_back(store, channel, why, who))


def print_channels(store: Path) -> None:
    """Every move of every channel, what stands there now marked."""
    check_store(store)
    rows = [("channel", "now", "kind", "identity", "when", "who", "decision", "why")]
    for channel in CHANNELS:
        moves = history(store, channel)
        for i, move in enumerate(moves):
            rows.append(
                (
                    channel,
                    "*" if i == len(moves) - 1 else "",
                    move.kind,
                    move.identity[:16],
                    move.when,
                    move.who,
                    (move.decision or "-")[:16],
                    ("back: " if move.back else "") + move.why,
                )
            )
    if len(rows) == 1:
        print(f"no channel of {store} stands for anything yet; mindcycle promote moves one")
        return
    print(columns(rows))


def print_comparison(references: Sequence[str], store: Path) -> None:
    """Eval-reports item by item, each against the first. Raises BadInput if they are unlike."""
    from stages.gate.comparison import as_markdown, compare
    from stages.gate.rules import read_scores

    if len(references) < 2:
        raise BadInput("compare: needs two eval-reports at least")
    paths = [find_artifact(store, reference) for reference in references]
    for path in paths:
        if (kind := read_manifest(path).kind) != "eval-report":
            raise BadInput(f"{path}: is of kind {kind}; an eval-report would be right")
    names = [path.name for path in paths]
    print_markdown(as_markdown(names, compare(names, [read_scores(path) for path in paths])))


def _print_move(channel: str, move: Move) -> None:
    verb = "went back to" if move.back else "now stands for"
    about = f"({move.who}, {move.when}: {move.why})"
    print(visible(f"{channel} {verb} {move.kind} {move.identity[:16]} {about}"))
