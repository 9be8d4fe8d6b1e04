"""Documents out of files: what they are, and where exactly a file is wrong."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from artifacts.errors import BadInput, StageFailed
from artifacts.validation import sentences
from stages.corpus import documents as documents_module
from stages.corpus.config import CorpusConfig, FilesSource
from stages.corpus.documents import documents
from stages.evaluate.other_tasks import TextTask


def read(path: Path, **options: Any) -> list[str]:
    return read_all([{"kind": "files", "paths": [str(path)], **options}])


def read_all(sources: list[dict[str, Any]]) -> list[str]:
    config = CorpusConfig.model_validate({"sources": sources, "tokenizer": {"vocab_size": 300}})
    config.source_files()
    return list(documents(config.sources))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("file", ["one\ntwo\n\n \nthree\r and\nfour"]),
        ("paragraph", ["one\ntwo", "three\r and\nfour"]),
        ("line", ["one", "two", "three\r and", "four"]),
    ],
)
def test_text_is_cut_into_documents_as_asked(tmp_path: Path, how: str, expected: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\ntwo\r\n\n \nthree\r and\nfour".encode())
    assert read(path, documents=how) == expected


def test_a_line_separator_inside_a_line_is_no_line_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\u2028two\x0bthree\n", encoding="utf-8")
    assert read(path, documents="line") == ["one\u2028two\x0bthree"]


def test_jsonl_parquet_csv_and_saved_datasets_give_the_same_documents(tmp_path: Path) -> None:
    texts = ['a "quoted", text', "zwei\nZeilen", "第三 篇", "last"]
    lines = [json.dumps({"body": text, "n": 1}, ensure_ascii=False) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines), encoding="utf-8")
    (tmp_path / "a.csv").write_text(
        'n,body\n1,"a ""quoted"", text"\n1,"zwei\nZeilen"\n\n1,第三 篇\n1,last\n', encoding="utf-8"
    )
    (tmp_path / "a.tsv").write_text(
        'n\tbody\n1\t"a ""quoted"", text"\n1\t"zwei\nZeilen"\n1\t第三 篇\n1\tlast\n',
        encoding="utf-8",
    )
    pq.write_table(
        pa.table({"body": texts, "n": [1] * 4}), tmp_path / "a.parquet", row_group_size=3
    )
    for name in ("a.jsonl", "a.csv", "a.tsv", "a.parquet"):
        assert read(tmp_path / name, text_field="body") == texts, name

    import datasets

    datasets.Dataset.from_dict({"body": texts}).save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"body": texts})}).save_to_disk(
        str(tmp_path / "split")
    )
    for name in ("plain", "split"):
        source = {"kind": "saved", "path": str(tmp_path / name), "text_field": "body"}
        assert read_all([source]) == texts, name
    with pytest.raises(BadInput, match="has no split 'test', only train"):
        read_all([source | {"split": "test"}])
    with pytest.raises(BadInput, match="has no field 'text', only body"):
        read_all([source | {"text_field": "text"}])


def test_the_end_of_a_name_says_the_same_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "a.TSV"
    path.write_text("text\tn\none, two\t1\n")
    assert read(path) == ["one, two"]


def test_a_hub_dataset_is_asked_for_as_configured_and_only_with_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets

    asked: list[Any] = []

    def load(*names: Any, **options: Any) -> Any:
        asked.append((names, options))
        return datasets.Dataset.from_dict({"body": ["a", "b"], "n": [1, 2]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = {"kind": "hub", "name": "o/n", "config": "c", "text_field": "body", "revision": "r"}
    config = {"sources": [source], "tokenizer": {"vocab_size": 300}}
    with pytest.raises(ValueError, match="allow_network"):
        CorpusConfig.model_validate(config)
    allowed = CorpusConfig.model_validate(config | {"allow_network": True})
    assert list(documents(allowed.sources)) == ["a", "b"]
    assert asked == [(("o/n", "c"), {"split": "train", "revision": "r"})]

    def unreachable(*names: Any, **options: Any) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(StageFailed, match=r"o/n: .* cannot be reached: no route"):
        list(documents(allowed.sources))


def test_problems_are_named_by_the_path_the_user_wrote() -> None:
    config = {"sources": [{"kind": "world", "seed": -1}], "tokenizer": {"vocab_size": 300}}
    with pytest.raises(ValidationError) as caught:
        CorpusConfig.model_validate(config)
    (sentence,) = sentences(caught.value, "corpus")
    assert sentence.startswith("corpus.sources.0.seed: is -1; ")


def test_sources_follow_one_another_and_globs_are_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "deep/er/c"):
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {name}\n")
    (tmp_path / "z.jsonl").write_text('{"text": "first"}\n')
    first = {"kind": "files", "paths": [str(tmp_path / "z.jsonl")]}
    rest = {"kind": "files", "paths": [str(tmp_path / "**/*.txt"), str(tmp_path / "a.txt")]}
    assert read_all([first, rest]) == ["first", "text a", "text b", "text deep/er/c"]


def test_documents_of_white_space_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n{"text": " \\n"}\n{"text": null}\n{"text": ""}\n')
    assert read(path) == ["x"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "a.txt: is empty"),
        ("a.txt", b"good\nb\xc3\xa4d \xff\n", r"not UTF-8 at byte 10 \(line 2, value 0xff\)"),
        ("a.txt", "wide".encode("utf-16"), r"not UTF-8 at byte 0 \(line 1, value 0xff\)"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text": \n', r"a\.jsonl:3: is no JSON"),
        ("a.jsonl", b'{"text": "x"}\n["text"]\n', r"a\.jsonl:2: must hold an object, not list"),
        ("a.jsonl", b'{"body": "x", "n": 1}\n', "jsonl:1: has no field 'text', only body, n"),
        ("a.jsonl", b'{"text": 3}\n', r"jsonl:1: field 'text' must hold text, not int"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"not UTF-8 at byte 10 \(line 1"),
        ("a.csv", b"body,n\nx,1\n", r"a\.csv:1: has no field 'text', only body, n"),
        ("a.csv", b"text,n\nx,1\ny\n", r"a\.csv:3: has 1 columns, the header 2"),
        ("a.csv", b'text,n\nx,1\n"open,2\n', r"a\.csv:3: is no CSV"),
        ("a.parquet", b"PAR1 no table", r"a\.parquet: is no readable parquet file"),
        ("a.json", b'[{"text": "x"}]', r"a\.json: one JSON value is no list of documents"),
        ("a.JSON", b'[{"text": "x"}]', r"a\.JSON: one JSON value is no list of documents"),
    ],
)
def test_a_wrong_file_is_named_with_the_place(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=says) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_parquet_file_with_the_wrong_column_or_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(BadInput, match=r"a\.parquet: row 1: field 'text' must hold text, not int"):
        read(path)
    with pytest.raises(BadInput, match=r"a\.parquet: has no field 'body', only text"):
        read(path, text_field="body")


def test_a_document_too_long_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_module, "LONGEST_DOCUMENT", 100)
    path = tmp_path / "a.txt"
    path.write_text(("x" * 50 + "\n") * 4)
    with pytest.raises(BadInput, match=r"a\.txt:2: a document is longer .* paragraph or line"):
        read(path)
    assert len(read(path, documents="line")) == 4
    path.write_text("x" * 101)
    with pytest.raises(BadInput, match=r"a\.txt:1: the line is longer"):
        read(path, documents="line")


def test_files_are_read_as_a_stream(tmp_path: Path) -> None:
    """The first document comes before a fault far behind it is met."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n\n" * 100_000 + b"\xff")
    config = CorpusConfig.model_validate(
        {
            "sources": [{"kind": "files", "paths": [str(path)]}],
            "tokenizer": {"vocab_size": 300},
        }
    )
    stream = documents(config.sources)
    assert next(stream) == "good"
    with pytest.raises(BadInput, match="byte 600000 "):
        list(stream)


def test_every_missing_thing_is_told_at_once(tmp_path: Path) -> None:
    config = CorpusConfig.model_validate(
        {
            "sources": [
                {"kind": "files", "paths": [f"{tmp_path}/no*.txt", f"{tmp_path}/nor.txt"]},
                {"kind": "saved", "path": f"{tmp_path}/nothing"},
            ],
            "tokenizer": {"file": f"{tmp_path}/tokenizer.json"},
        }
    )
    with pytest.raises(BadInput) as caught:
        config.source_files()
    assert len(caught.value.problems) == 4
    assert "no*.txt' fits no file" in caught.value.problems[0]
    assert "tokenizer.json is no file" in caught.value.problems[3]


def test_source_files_are_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/state.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    config = CorpusConfig.model_validate(
        {
            "sources": [
                {"kind": "files", "paths": [f"{tmp_path}/*.txt"]},
                {"kind": "saved", "path": f"{tmp_path}/saved"},
            ],
            "tokenizer": {"file": f"{tmp_path}/tokenizer.json"},
        }
    )
    names = ["a.txt", "saved/state.json", "tokenizer.json", "tokenizer_config.json"]
    assert config.source_files() == [tmp_path / name for name in names]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sources": []}, "at least 1"),
        ({"sources": [{"kind": "worlds"}]}, "kind must be world, files, saved or hub"),
        ({"sources": [{"kind": "world", "countries": 9}]}, "multiple of 2"),
        ({"sources": [{"kind": "world"}, {"kind": "world"}]}, "two worlds"),
        ({"sources": [{"kind": "hub", "name": "a/b"}]}, "allow_network"),
        ({"tokenizer": {}}, "either vocab_size"),
        ({"tokenizer": {"vocab_size": 300, "file": "t.json"}}, "either vocab_size"),
        ({"tokenizer": {"vocab_size": 259}}, "260"),
        ({"tokenizer": {"vocab_size": 300, "eos_token": "x"}}, "existing file"),
        ({"validation_share": 0}, "greater than 0"),
        ({"shuffle": True}, "shuffle"),
    ],
)
def test_a_wrong_config_is_refused(change: dict[str, Any], says: str) -> None:
    good = {"sources": [{"kind": "world"}], "tokenizer": {"vocab_size": 300}}
    CorpusConfig.model_validate(good)
    with pytest.raises(ValueError, match=says):
        CorpusConfig.model_validate(good | change)


def test_a_file_of_that_very_name_is_meant_though_it_holds_brackets(tmp_path: Path) -> None:
    path = tmp_path / "a b*[1].txt"
    path.write_text("x")
    assert FilesSource(kind="files", paths=[str(path)]).files() == [path]
    assert TextTask(texts=(str(path),)).files() == [path]
