"""Channels and approvals: what stands where, who put it there, and what is refused."""

import json
import multiprocessing
from pathlib import Path

import pytest

from artifacts.approval import approval_of, give_approval
from artifacts.channels import history, promote, roll_back, standing
from artifacts.errors import BadInput
from artifacts.manifest import (
    InputEntry,
    Kind,
    content_digest,
    list_files,
    read_manifest,
    write_manifest,
)
from flows.lifecycle import STEPS, _with_baseline
from flows.promotion import print_channels, print_comparison, print_promotion
from tests.reports import report_content, write_artifact
from tests.tiny_models import as_artifact


def made(store: Path, character: str, kind: Kind = "release") -> Path:
    def fill(directory: Path) -> None:
        (directory / "release.json").write_text(character)

    entry = InputEntry(kind="decision", identity="d" * 64, digest="e" * 64)
    scores = InputEntry(kind="eval-report", identity="5" * 64, digest="6" * 64)
    return as_artifact(
        store,
        kind,
        fill,
        identity=character * 64,
        inputs={"decision": entry, "candidate": scores},
    )


def test_a_channel_keeps_its_whole_history_and_goes_back(tmp_path: Path) -> None:
    one, two, three = (made(tmp_path, character) for character in "123")
    for path in (one, two, three):
        promote(tmp_path, "production", path, f"because of {path.name[0]}", "Ada")
    assert standing(tmp_path, "production") == three
    roll_back(tmp_path, "production", "slow", "Bob")
    assert standing(tmp_path, "production") == two
    roll_back(tmp_path, "production", "slow too")
    assert standing(tmp_path, "production") == one
    with pytest.raises(BadInput, match="production: nothing stood there before"):
        roll_back(tmp_path, "production", "further")
    promote(tmp_path, "production", three, "mended")
    roll_back(tmp_path, "production", "not mended")
    assert standing(tmp_path, "production") == one
    moves = history(tmp_path, "production")
    assert [move.identity[0] for move in moves] == list("1232131")
    assert [move.back for move in moves] == [False] * 3 + [True] * 2 + [False, True]
    assert (moves[0].who, moves[0].why) == ("Ada", "because of 1")
    assert moves[0].decision == "e" * 64
    assert standing(tmp_path, "staging") is None


def test_what_may_not_stand_there_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model, release = made(tmp_path, "1", "hf-model"), made(tmp_path, "2")
    promote(tmp_path, "candidate", model, "first")
    promote(tmp_path, "staging", release, "first")
    before = (tmp_path / "channels/staging.json").read_bytes()
    with pytest.raises(BadInput, match="is of kind hf-model; staging takes release"):
        promote(tmp_path, "staging", model, "why not")
    with pytest.raises(BadInput, match="is what staging stands for already"):
        promote(tmp_path, "staging", release, "again")
    with pytest.raises(BadInput, match="why: is empty"):
        promote(tmp_path, "production", release, " ")
    with pytest.raises(BadInput, match="stands in another store"):
        promote(tmp_path / "other", "production", release, "moved")
    (release / "release.json").write_text("3")
    with pytest.raises(BadInput, match="has changed"):
        promote(tmp_path, "production", release, "spoilt")
    assert (tmp_path / "channels/staging.json").read_bytes() == before
    assert history(tmp_path, "production") == []


def test_a_channel_does_not_go_back_to_what_was_made_again_with_other_bytes(tmp_path: Path) -> None:
    one, two = (made(tmp_path, character) for character in "12")
    promote(tmp_path, "production", one, "first")
    promote(tmp_path, "production", two, "second")
    (one / "release.json").write_text("made again")
    files = list_files(one)
    about = {"files": files, "digest": content_digest("release", files)}
    write_manifest(one, read_manifest(one).model_copy(update=about))
    with pytest.raises(BadInput, match=r"1{16}: has the digest .* is not what production was mov"):
        roll_back(tmp_path, "production", "slow")
    assert standing(tmp_path, "production") == two


def move(store: Path, name: str) -> None:
    promote(store, "staging", store / "release" / (name * 16), name)


def test_moves_at_once_lose_none(tmp_path: Path) -> None:
    for character in "12345678":
        made(tmp_path, character)
    with multiprocessing.get_context("fork").Pool(8) as pool:
        pool.starmap(move, [(tmp_path, character) for character in "12345678"])
    assert sorted(one.identity[0] for one in history(tmp_path, "staging")) == list("12345678")


def test_a_broken_channel_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "channels").mkdir()
    (tmp_path / "channels/staging.json").write_text(
        '{"channel": "staging", "moves": [{"kind": 1}]}'
    )
    with pytest.raises(BadInput, match=r"staging.json: moves.0.kind"):
        standing(tmp_path, "staging")


def test_channels_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    promote(tmp_path, "staging", made(tmp_path, "1"), "good on all items", "Ada")
    print_channels(tmp_path)
    shown = capsys.readouterr().out
    assert "staging  *    release  1111111111111111" in shown
    assert "good on all items" in shown


def test_a_move_is_told_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = str(made(tmp_path, "1"))
    print_promotion(reference, tmp_path, "staging", "\x1b]0;title\x07 good", "Ada")
    assert capsys.readouterr().out.endswith(": \ufffd]0;title\ufffd good)\n")


def test_a_channel_serves_as_the_gates_baseline(tmp_path: Path) -> None:
    gate = next(step for step in STEPS if step.name == "gate")
    assert _with_baseline(gate, "production", tmp_path).given == {}
    promote(tmp_path, "production", made(tmp_path, "1"), "first")
    given = _with_baseline(gate, "production", tmp_path).given
    assert given == {"baseline": tmp_path / "eval-report" / ("5" * 16)}


def decision(store: Path, outcome: str = "approved", approval: bool = True) -> Path:
    path = as_artifact(store, "decision", lambda d: (d / "decision.json").write_text(outcome))
    made = {"headline": {"outcome": outcome}, "config": {"approval": approval}}
    write_manifest(path, read_manifest(path).model_copy(update=made))
    return path


def test_an_approval_is_given_once_and_bound_to_its_decision(tmp_path: Path) -> None:
    manifest = read_manifest(decision(tmp_path))
    assert approval_of(tmp_path, manifest) is None
    given = give_approval(tmp_path, manifest, True, "looked at 20 answers", "Ada")
    assert approval_of(tmp_path, manifest) == given
    assert (given.who, given.why, given.approved) == ("Ada", "looked at 20 answers", True)
    with pytest.raises(BadInput, match=r"was approved already by Ada at .*: looked at 20 answers"):
        give_approval(tmp_path, manifest, False, "changed my mind")
    (file,) = (tmp_path / "approvals").iterdir()
    file.write_text(json.dumps(given.model_dump() | {"decision": "f" * 64}))
    with pytest.raises(BadInput, match="is about the decision ffff"):
        approval_of(tmp_path, manifest)


def test_a_rejection_cannot_be_approved(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the gate rejected this model"):
        give_approval(tmp_path, read_manifest(decision(tmp_path, "rejected")), True, "please")


def test_a_decision_that_waits_for_nobody_is_not_approved(tmp_path: Path) -> None:
    manifest = read_manifest(decision(tmp_path, approval=False))
    with pytest.raises(BadInput, match="asks for no person's approval"):
        give_approval(tmp_path, manifest, True, "looked at it")
    assert approval_of(tmp_path, manifest) is None


def test_reports_are_compared_item_by_item(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = [True] * 60 + [False] * 40
    paths = [
        write_artifact(tmp_path, report_content({"mmlu": right}, model="a"), "1"),
        write_artifact(tmp_path, report_content({"mmlu": right[::-1]}, model="b"), "2"),
        write_artifact(tmp_path, report_content({"mmlu": [True] * 90 + [False] * 10}), "3"),
    ]
    print_comparison([str(path) for path in paths], tmp_path)
    shown = capsys.readouterr().out
    assert "| mmlu | 2222222222222222 | 100 | 60.00 | 60.00 | +0.00 (" in shown
    assert "| 40 | 40 | 1 | 1 |" in shown
    third = next(line for line in shown.splitlines() if "3333" in line)
    assert "| 90.00 | 60.00 | +30.00 (+21.00 to +39.00) | 30 | 0 | 1.9e-09 | 3.7e-09 |" in third
    other = report_content({"mmlu": right})
    other[0]["conditions"]["dtype"] = "float16"
    unlike = write_artifact(tmp_path, other, "4")
    with pytest.raises(BadInput, match=r"is not comparable with 1111.*element type"):
        print_comparison([str(paths[0]), str(unlike)], tmp_path)
    fewer = write_artifact(tmp_path, report_content({"mmlu": right[:-1]}), "5")
    with pytest.raises(BadInput, match=r"1 item stands only in 1{16}'s report"):
        print_comparison([str(paths[0]), str(fewer)], tmp_path)
    with pytest.raises(BadInput, match=r"1 item stands only in 1{16}'s report"):
        print_comparison([str(fewer), str(paths[0])], tmp_path)
