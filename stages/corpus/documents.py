"""Documents from each kind of source, one at a time; nothing here holds a whole file's text."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from artifacts.errors import BadInput, StageFailed
from artifacts.json_files import parse_json
from artifacts.validation import plain
from stages.corpus.config import FilesSource, HubSource, SavedSource, Source, WorldSource
from stages.corpus.world import World
from stages.corpus.world import documents as world_documents

LONGEST_DOCUMENT = 64 << 20
"""Bytes. A larger one is a file that was read the wrong way, and would not fit every memory."""

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
}


def documents(sources: list[Source]) -> Iterator[str]:
    """Every document of every source, in order; documents of nothing but white space are left out.

    Raises BadInput naming the file and line, row or byte that is wrong.
    """
    for source in sources:
        for text in _read(source):
            if text and not text.isspace():
                yield text


def _read(source: Source) -> Iterator[str]:
    if isinstance(source, WorldSource):
        yield from world_documents(
            World(source.seed, source.countries, source.attributes),
            source.documents,
            source.chinese_share,
            source.format_share,
            source.skew,
        )
    elif isinstance(source, FilesSource):
        for path in source.files():
            yield from _read_file(path, source)
    else:
        yield from _read_dataset(source)


def problems_at_the_start(sources: list[Source]) -> Iterator[str]:
    """What keeps the first document of each local file from being read, in sentences."""
    for source in [one for one in sources if isinstance(one, FilesSource)]:
        for path in source.files():
            try:
                next(_read_file(path, source), None)
            except BadInput as error:
                yield from error.problems
            except OSError as error:
                yield f"{path}: cannot be read: {error.strerror}"


def _read_file(path: Path, source: FilesSource) -> Iterator[str]:
    if path.stat().st_size == 0:
        raise BadInput(f"{path}: is empty; remove it from sources, or give it text")
    kind = source.format if source.format != "auto" else FORMATS.get(path.suffix.lower(), "text")
    if kind == "text":
        return _text(path, source.documents)
    if kind == "jsonl":
        return _jsonl(path, source.text_field)
    if kind == "csv":
        return _csv(path, source.text_field)
    return _parquet(path, source.text_field)


def _text(path: Path, documents: str) -> Iterator[str]:
    """Split at nothing, blank lines or line ends; what separates documents is no part of them."""
    if documents == "line":
        for _, line in _lines(path):
            yield line.rstrip("\n")
        return
    held: list[str] = []
    size = 0
    for number, line in _lines(path):
        if documents == "paragraph" and line.isspace():
            yield "".join(held).rstrip("\n")
            held, size = [], 0
            continue
        held.append(line)
        size += len(line)
        if size > LONGEST_DOCUMENT:
            raise BadInput(
                f"{path}:{number}: a document is longer than {LONGEST_DOCUMENT >> 20} MiB; "
                "set documents: paragraph or line"
            )
    yield "".join(held).rstrip("\n")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line, its end as "\\n"; a byte order mark is dropped."""
    offset = 0
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LONGEST_DOCUMENT + 1):
            number += 1
            if len(raw) > LONGEST_DOCUMENT:
                raise BadInput(
                    f"{path}:{number}: the line is longer than {LONGEST_DOCUMENT >> 20} MiB"
                )
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadInput(
                    f"{path}: is not UTF-8 at byte {offset + error.start} (line {number}, value "
                    f"0x{raw[error.start]:02x}); convert it, for example with "
                    f"`iconv -f ENCODING -t UTF-8`"
                ) from None
            offset += len(raw)
            if number == 1:
                line = line.removeprefix("\ufeff")
            yield number, line[:-2] + "\n" if line.endswith("\r\n") else line


def _jsonl(path: Path, field: str) -> Iterator[str]:
    for number, line in _lines(path):
        if line.isspace():
            continue
        record = parse_json(line.rstrip("\n"), f"{path}:{number}")
        if not isinstance(record, dict):
            raise BadInput(f"{path}:{number}: must hold an object, not {type(record).__name__}")
        if field not in record:
            raise BadInput(_no_field(f"{path}:{number}", field, record))
        yield _text_of(record[field], f"{path}:{number}", field)


def _csv(path: Path, field: str) -> Iterator[str]:
    csv.field_size_limit(min(sys.maxsize, LONGEST_DOCUMENT))
    lines = (line for _, line in _lines(path))
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(reader)
        if field not in header:
            raise BadInput(_no_field(f"{path}:1", field, header))
        column = header.index(field)
        for row in reader:
            if row and len(row) != len(header):
                raise BadInput(
                    f"{path}:{reader.line_num}: has {len(row)} columns, the header {len(header)}"
                )
            if row:
                yield row[column]
    except csv.Error as error:
        raise BadInput(f"{path}:{reader.line_num}: is no CSV: {error}") from None


def _parquet(path: Path, field: str) -> Iterator[str]:
    import pyarrow as pa  # slow to import, and most corpora need none of it
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise BadInput(_no_field(str(path), field, names))
            row = 0
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for value in batch.column(0):
                    row += 1
                    yield _text_of(value.as_py(), f"{path}: row {row}", field)
    except pa.ArrowException as error:
        raise BadInput(f"{path}: is no readable parquet file: {error}") from None


def _read_dataset(source: SavedSource | HubSource) -> Iterator[str]:
    import datasets

    where = source.path if isinstance(source, SavedSource) else source.name
    try:
        if isinstance(source, SavedSource):
            data: Any = datasets.load_from_disk(source.path)
            if isinstance(data, datasets.DatasetDict):
                if source.split not in data:
                    raise BadInput(
                        f"{where}: has no split {source.split!r}, only {', '.join(data)}"
                    )
                data = data[source.split]
        else:
            data = datasets.load_dataset(
                source.name, source.config, split=source.split, revision=source.revision
            )
        if source.text_field not in data.column_names:
            raise BadInput(_no_field(where, source.text_field, data.column_names))
        for row, record in enumerate(data.select_columns([source.text_field]), start=1):
            yield _text_of(record[source.text_field], f"{where}: row {row}", source.text_field)
    except BadInput:
        raise
    except ConnectionError as error:
        raise StageFailed(f"{where}: the Hugging Face hub cannot be reached: {error}") from None
    except Exception as error:  # its errors have no common base; one is that it runs no scripts
        raise BadInput(f"{where}: cannot be read as a dataset: {plain(str(error))}") from None


def _text_of(value: Any, where: str, field: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadInput(f"{where}: field {field!r} must hold text, not {type(value).__name__}")
    return value


def _no_field(where: str, field: str, present: Any) -> str:
    return f"{where}: has no field {field!r}, only {', '.join(map(str, present)) or 'none'}"
