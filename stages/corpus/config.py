"""What the corpus stage can be told: where text comes from, its tokenizer, and its split."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from artifacts.errors import BadInput
from artifacts.fields import Count
from artifacts.patterns import files_fitting
from stages.corpus.world_words import ATTRIBUTES, MAX_COUNTRIES
from stages.spec import StageConfig, StageSpec

SMALLEST_VOCABULARY = 260
"""256 bytes and four special tokens: any text can be written with these."""

TokenizerFiles = ("tokenizer_config.json", "special_tokens_map.json")
ChatTemplate = "chat_template.jinja"
"""Named here again: `artifacts.tokenizer_files` would bring tokenizers into every command."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class WorldSource(_Part):
    """Invented countries and facts, made by this program; needs no files and no network."""

    kind: Literal["world"]
    seed: int = Field(1, ge=0)
    """Another seed is another world. Default 1."""
    countries: int = Field(60, ge=8, le=MAX_COUNTRIES, multiple_of=2)
    """Number of countries, even; half of them are asked about only in the test. Default 60."""
    attributes: int = Field(6, ge=1, le=len(ATTRIBUTES))
    """Number of things known of each country, each with one of four values. Default 6."""
    documents: Count = Field(20_000, ge=1)
    """Number of documents to write. Default 20000, about half a million tokens."""
    chinese_share: float = Field(0.5, ge=0, le=1)
    """Share of the documents that are Chinese, 0 to 1; the rest is English. Default 0.5."""
    skew: float = Field(1.0, ge=0, le=2)
    """How unequally countries are written about: the k-th of either half in proportion to
    1 / k ** skew. Some inequality shortens the time until facts are learned. Default 1."""
    format_share: float = Field(0.08, ge=0, le=0.5)
    """Share of the documents that ask and answer sums instead of stating facts, 0 to 0.5. Without
    them the words of the question frame stay unknown to the model. Default 0.08."""


class FilesSource(_Part):
    """Local files. Paths and globs are relative to the current directory."""

    kind: Literal["files"]
    paths: list[str] = Field(min_length=1)
    """Files or globs (`**` goes into folders). Each must fit at least one file."""
    format: Literal["auto", "text", "jsonl", "parquet", "csv"] = "auto"
    """How to read them; auto goes by the name: .jsonl, .ndjson, .parquet, .csv, .tsv, and anything
    else is text. Default auto."""
    documents: Literal["file", "paragraph", "line"] = "paragraph"
    """What one document is in a text file: all of it, a paragraph (up to a blank line) or a line.
    Default paragraph, so that one book is many documents and can be split."""
    text_field: str = "text"
    """Field or column that holds the text, for JSONL, parquet and CSV. Default text."""

    def files(self) -> list[Path]:
        """The files, each once, in the order of the patterns and by name within one.

        Raises BadInput naming, below this source's field, every pattern that fits no file.
        """
        found: dict[Path, None] = {}
        problems = []
        for i, pattern in enumerate(self.paths):
            files = sorted(files_fitting(pattern), key=str)
            if not files:
                problems.append(f"paths.{i}: {pattern!r} fits no file (looked from {Path.cwd()})")
            for path in files:
                if self.format == "auto" and path.suffix.lower() == ".json":
                    problems.append(
                        f"paths.{i}: {path}: one JSON value is no list of documents; "
                        "write one object a line and set format: jsonl"
                    )
                found[path] = None
        if problems:
            raise BadInput(*problems)
        return list(found)


class SavedSource(_Part):
    """A directory that `datasets` wrote with `save_to_disk`."""

    kind: Literal["saved"]
    path: str
    """The directory, relative to the current one."""
    split: str = "train"
    """Split to read if the directory holds several. Default train."""
    text_field: str = "text"
    """Column that holds the text. Default text."""


class HubSource(_Part):
    """A dataset from the Hugging Face hub; needs `allow_network: true`. Runs no dataset scripts."""

    kind: Literal["hub"]
    name: str
    """Dataset, such as `org/name`."""
    config: str | None = None
    """Configuration of the dataset. Default: its own."""
    split: str = "train"
    """Split to read. Default train."""
    revision: str | None = None
    """Commit of the dataset. Default: the newest, which can be other bytes tomorrow."""
    text_field: str = "text"
    """Column that holds the text. Default text."""


def _kind(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return f"function-{kind}" if isinstance(kind, str) else None


# The chosen branch is part of the path in pydantic's findings, except where `artifacts.validation`
# takes it out: tags that begin with function-.
Source = Annotated[
    Annotated[WorldSource, Tag("function-world")]
    | Annotated[FilesSource, Tag("function-files")]
    | Annotated[SavedSource, Tag("function-saved")]
    | Annotated[HubSource, Tag("function-hub")],
    Discriminator(
        _kind,
        custom_error_type="source_kind",
        custom_error_message="kind must be world, files, saved or hub",
    ),
]


class TokenizerConfig(_Part):
    """A byte-level BPE trained on the training split, or an existing tokenizer."""

    vocab_size: int | None = Field(None, ge=SMALLEST_VOCABULARY, le=1 << 20)
    """Number of entries to train, special tokens and the 256 bytes included."""
    max_bytes: int = Field(2_000_000_000, ge=1, le=1 << 50)
    """Text to train on, UTF-8 bytes from the beginning. Default 2e9: more changes little."""
    file: str | None = None
    """An existing `tokenizer.json`; what stands beside it (`tokenizer_config.json`) is read too."""
    eos_token: str | None = None
    """End-of-document token of `file`. Default: what `tokenizer_config.json` says; another one
    stands in the copies of its files."""

    @model_validator(mode="after")
    def _one_of(self) -> "TokenizerConfig":
        if (self.vocab_size is None) == (self.file is None):
            raise ValueError(
                "give either vocab_size, to train one, or file, to use an existing one"
            )
        if self.eos_token is not None and self.file is None:
            raise ValueError("eos_token is for an existing file; a trained tokenizer has its own")
        return self


class CorpusConfig(StageConfig):
    """Text to a tokenizer and token shards."""

    sources: list[Source] = Field(min_length=1)
    """Where the text comes from, read in this order."""
    tokenizer: TokenizerConfig
    """Its tokenizer."""
    validation_share: float = Field(0.02, gt=0, le=0.5)
    """Share of documents kept for validation, above 0 to 0.5; which ones follows from a hash of
    their text, so that equal documents never stand on both sides. Default 0.02."""
    seed: int = Field(0, ge=0)
    """Goes into that hash: another seed is another split. Default 0."""
    allow_network: bool = False
    """Whether sources of kind hub may be fetched. Default false."""

    @model_validator(mode="after")
    def _consistent(self) -> "CorpusConfig":
        hubs = [str(i) for i, source in enumerate(self.sources) if source.kind == "hub"]
        if hubs and not self.allow_network:
            raise ValueError(
                f"sources {', '.join(hubs)} come from the hub; set allow_network: true, "
                "or save the dataset to disk and use kind: saved"
            )
        if sum(source.kind == "world" for source in self.sources) > 1:
            raise ValueError("sources hold two worlds; one corpus has one set of world tests")
        return self

    def source_files(self) -> list[Path]:
        """Every local file that is read. Raises BadInput for what is missing."""
        found: list[Path] = []
        problems: list[str] = []
        for i, source in enumerate(self.sources):
            try:
                if isinstance(source, FilesSource):
                    found += source.files()
                elif isinstance(source, SavedSource):
                    found += _files_below(source.path)
            except BadInput as error:
                problems += [f"corpus.sources.{i}.{said}" for said in error.problems]
        if self.tokenizer.file is not None:
            path = Path(self.tokenizer.file)
            if not path.is_file():
                problems.append(f"corpus.tokenizer.file: {path} is no file")
            found += [
                path,
                *(
                    p
                    for name in (*TokenizerFiles, ChatTemplate)
                    if (p := path.with_name(name)).is_file()
                ),
            ]
        if problems:
            raise BadInput(*problems)
        return found

    def look_into_sources(self) -> None:
        """Each file's first document, and the tokenizer."""
        # Here, since it brings the tokenizers library, which a config need not wait for.
        from stages.corpus.documents import problems_at_the_start
        from stages.corpus.tokenizer import open_tokenizer

        problems = list(problems_at_the_start(self.sources))
        if self.tokenizer.file is not None:
            try:
                open_tokenizer(Path(self.tokenizer.file), self.tokenizer.eos_token)
            except BadInput as error:
                problems += error.problems
        if problems:
            raise BadInput(*problems)

    def seeds(self) -> dict[str, int]:
        """The split's seed and the world's."""
        worlds = [source.seed for source in self.sources if isinstance(source, WorldSource)]
        return {"split": self.seed} | ({"world": worlds[0]} if worlds else {})


def _files_below(directory: str) -> list[Path]:
    files = sorted(path for path in Path(directory).rglob("*") if path.is_file())
    if not files:
        raise BadInput(f"path: {directory!r} is no directory with a saved dataset in it")
    return files


SPEC = StageSpec(name="corpus", makes="corpus", config=CorpusConfig, inputs={}, code_version=3)
