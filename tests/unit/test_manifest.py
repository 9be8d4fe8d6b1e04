"""A manifest binds every byte, and nothing it names may lie outside."""

import json
from pathlib import Path

import pytest

from artifacts.digest import sha256_file
from artifacts.errors import BadInput
from artifacts.lineage import verify_chain
from artifacts.manifest import (
    MANIFEST,
    InputEntry,
    Manifest,
    SourceEntry,
    content_digest,
    identity_of,
    list_files,
    problems_with_files,
    read_manifest,
    write_manifest,
)
from artifacts.store import artifact_path, find_artifact, list_artifacts


def make_artifact(
    store: Path,
    files: dict[str, bytes],
    kind: str = "corpus",
    inputs: dict[str, InputEntry] | None = None,
    sources: list[SourceEntry] | None = None,
) -> Path:
    """An artifact written by hand, whole and right."""
    inputs, sources = inputs or {}, sources or []
    identity = identity_of(
        kind, 1, {"files": sorted(files)}, {r: e.digest for r, e in inputs.items()}, sources
    )
    path = artifact_path(store, kind, identity)
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    entries = list_files(path)
    write_manifest(
        path,
        Manifest(
            kind=kind,  # type: ignore[arg-type]
            stage="by-hand",
            code_version=1,
            identity=identity,
            digest=content_digest(kind, entries),
            files=entries,
            inputs=inputs,
            sources=sources,
            config={},
            seeds={},
            packages={},
            host={},
            started="2026-01-01T00:00:00+00:00",
            finished="2026-01-01T00:00:00+00:00",
            headline={},
        ),
    )
    return path


def as_input(path: Path) -> InputEntry:
    manifest = read_manifest(path)
    return InputEntry(kind=manifest.kind, identity=manifest.identity, digest=manifest.digest)


def test_logs_are_hashed_but_leave_the_digest_alone(tmp_path: Path) -> None:
    one = make_artifact(tmp_path / "a", {"x.bin": b"same", "logs/time.csv": b"1 s"})
    two = make_artifact(tmp_path / "b", {"x.bin": b"same", "logs/time.csv": b"2 s"})
    assert read_manifest(one).digest == read_manifest(two).digest
    (one / "logs/time.csv").write_bytes(b"9 s")
    assert problems_with_files(one, read_manifest(one))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: (p / "x.bin").write_bytes(b"samE"), "x.bin: has changed"),
        (lambda p: (p / "x.bin").write_bytes(b"sam"), "x.bin: has 3 bytes, the manifest says 4"),
        (lambda p: (p / "x.bin").unlink(), "x.bin: is missing"),
        (lambda p: (p / "more.bin").write_bytes(b""), "more.bin: is not in the manifest"),
        (lambda p: (p / "link").symlink_to("/etc/hostname"), "link: is not in the manifest"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, says: str) -> None:
    path = make_artifact(tmp_path, {"x.bin": b"same"})
    assert problems_with_files(path, read_manifest(path)) == []
    damage(path)
    found = problems_with_files(path, read_manifest(path))
    assert len(found) == 1
    assert says in found[0]


def test_a_file_replaced_by_a_link_to_equal_bytes_is_refused(tmp_path: Path) -> None:
    path = make_artifact(tmp_path / "store", {"x.bin": b"same"})
    (tmp_path / "outside").write_bytes(b"same")
    (path / "x.bin").unlink()
    (path / "x.bin").symlink_to(tmp_path / "outside")
    assert "leaves the artifact" in problems_with_files(path, read_manifest(path))[0]


@pytest.mark.parametrize("outside", ["../x", "/etc/passwd", "a/../../x", "a\\..\\x", ""])
def test_a_path_that_leaves_the_directory_is_refused(tmp_path: Path, outside: str) -> None:
    path = make_artifact(tmp_path, {"x.bin": b"same"})
    record = json.loads((path / MANIFEST).read_text())
    record["files"][0]["path"] = outside
    (path / MANIFEST).write_text(json.dumps(record))
    with pytest.raises(BadInput, match=r"files\.0\.path"):
        read_manifest(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}'])
def test_a_broken_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(BadInput, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_the_digest_follows_from_the_files(tmp_path: Path) -> None:
    path = make_artifact(tmp_path, {"x.bin": b"same"})
    record = json.loads((path / MANIFEST).read_text())
    (path / "x.bin").write_bytes(b"evil")
    record["files"][0]["sha256"] = sha256_file(path / "x.bin")
    (path / MANIFEST).write_text(json.dumps(record))
    assert "digest does not follow" in problems_with_files(path, read_manifest(path))[0]


def test_the_chain_is_checked_back_to_the_source(tmp_path: Path) -> None:
    store, text = tmp_path / "store", tmp_path / "text.txt"
    text.write_bytes(b"words")
    source = SourceEntry(path=str(text), size=5, sha256=sha256_file(text))
    corpus = make_artifact(store, {"tokens": b"123"}, sources=[source])
    model = make_artifact(store, {"w": b"4"}, "checkpoint", {"corpus": as_input(corpus)})
    report = make_artifact(store, {"r": b"5"}, "eval-report", {"model": as_input(model)})

    chain = verify_chain(report)
    assert [manifest.kind for _, manifest in chain.checked] == [
        "eval-report",
        "checkpoint",
        "corpus",
    ]
    assert (chain.problems, chain.notes) == ([], [])

    (corpus / "tokens").write_bytes(b"12x")
    assert "tokens: has changed" in verify_chain(report).problems[0]
    (corpus / "tokens").write_bytes(b"123")
    text.write_bytes(b"other")
    assert "text.txt: has changed since" in verify_chain(report).problems[0]
    text.unlink()
    chain = verify_chain(report)
    assert chain.problems == []
    assert "text.txt is not here" in chain.notes[0]


def test_an_input_rewritten_with_a_consistent_manifest_is_found(tmp_path: Path) -> None:
    corpus = make_artifact(tmp_path, {"tokens": b"123"})
    model = make_artifact(tmp_path, {"w": b"4"}, "checkpoint", {"corpus": as_input(corpus)})
    (corpus / MANIFEST).unlink()
    make_artifact(tmp_path, {"tokens": b"999"})
    assert "is not what" in verify_chain(model).problems[0]


def test_artifacts_are_found_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    one = make_artifact(tmp_path, {"x": b"1"})
    two = make_artifact(tmp_path, {"y": b"2"})
    assert {path for path, _ in list_artifacts(tmp_path)} == {one, two}
    assert find_artifact(tmp_path, one.name[:8]) == one
    assert find_artifact(tmp_path, read_manifest(two).digest[:8]) == two
    assert find_artifact(tmp_path, str(one)) == one
    for reference in ("", "abc", "nothing"):
        with pytest.raises(BadInput):
            find_artifact(tmp_path, reference)


@pytest.mark.parametrize(
    ("field", "value"), [("headline", {"loss": 0.1}), ("seeds", {"seed": 8}), ("started", "then")]
)
def test_what_no_file_holds_is_sealed(tmp_path: Path, field: str, value: object) -> None:
    path = make_artifact(tmp_path, {"x.bin": b"same"})
    record = json.loads((path / MANIFEST).read_text())
    record[field] = value
    (path / MANIFEST).write_text(json.dumps(record))
    (problem,) = problems_with_files(path, read_manifest(path))
    assert problem == f"{path / MANIFEST}: has changed, its seal is not that of its content"
    del record["seal"]  # as manifests were before there was a seal
    (path / MANIFEST).write_text(json.dumps(record))
    assert problems_with_files(path, read_manifest(path)) == []


def test_one_broken_manifest_hides_no_other_artifact(tmp_path: Path) -> None:
    one, two = (make_artifact(tmp_path, {name: b"1"}) for name in ("x", "y"))
    (two / MANIFEST).write_text("{")
    problems: list[str] = []
    assert [path for path, _ in list_artifacts(tmp_path, problems)] == [one]
    assert len(problems) == 1
    assert find_artifact(tmp_path, one.name[:8]) == one
    with pytest.raises(BadInput, match=r"(?s)is neither.*manifest\.json: is no JSON"):
        find_artifact(tmp_path, two.name[:8])
    (two / MANIFEST).unlink()
    with pytest.raises(BadInput, match=r"is no artifact, it has no manifest\.json"):
        find_artifact(tmp_path, str(two))
