"""The corpus stage as a process: whole artifacts, equal bytes, exit 2 for wrong input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from artifacts.corpus import TokenCorpus
from artifacts.lineage import verify_chain
from artifacts.manifest import Manifest, read_manifest

WORLD = {"kind": "world", "seed": 5, "countries": 12, "attributes": 3, "documents": 400}


def corpus(
    tmp_path: Path, config: dict[str, Any], store: str = "store", **environment: str
) -> subprocess.CompletedProcess[str]:
    request = {
        "stage": "corpus",
        "config": config,
        "inputs": {},
        "store": str(tmp_path / store),
    }
    path = tmp_path / f"{store}.json"
    path.write_text(json.dumps(request))
    return subprocess.run(
        [sys.executable, "-m", "stages.corpus", str(path)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def made(tmp_path: Path, store: str = "store") -> tuple[Path, Manifest]:
    (path,) = (tmp_path / store / "corpus").glob("[!.]*")
    return path, read_manifest(path)


def paragraphs(count: int) -> str:
    return "\n\n".join(f"Paragraph {k} says {k * k} and no more." for k in range(count)) + "\n"


def test_the_world_becomes_a_corpus_with_its_tests(tmp_path: Path) -> None:
    done = corpus(tmp_path, {"sources": [WORLD], "tokenizer": {"vocab_size": 400}})
    assert done.returncode == 0, done.stderr
    path, manifest = made(tmp_path)
    assert verify_chain(path).problems == []
    assert manifest.seeds == {"split": 0, "world": 5}
    headline = manifest.headline
    assert (headline["documents"], headline["vocab_size"]) == (400, 400)
    assert headline["world_mmlu"] == headline["world_ceval"] == 6 * 3
    assert headline["world_sft"] == 6 * 3 * 2
    assert (path / "world/mmlu/test/crop_test.csv").is_file()
    opened = TokenCorpus(path)
    streams = [opened.split(name) for name in ("train", "validation")]
    assert sum(stream.documents for stream in streams) == 400
    assert sum(stream.tokens for stream in streams) == headline["tokens"]
    assert headline["bytes_per_token"] == pytest.approx(
        sum(stream.bytes for stream in streams) / headline["tokens"], abs=1e-3
    )


def test_text_comes_back_document_by_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(paragraphs(150))
    config = {
        "sources": [{"kind": "files", "paths": [f"{tmp_path}/*.txt"]}],
        "tokenizer": {"vocab_size": 280},
        "validation_share": 0.2,
    }
    done = corpus(tmp_path, config)
    assert done.returncode == 0, done.stderr
    path, manifest = made(tmp_path)
    assert [Path(source.path).name for source in manifest.sources] == ["a.txt"]
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    read = []
    for name in ("train", "validation"):
        stream = TokenCorpus(path).split(name)
        tokens = stream.slice(0, stream.tokens)
        starts = np.fromfile(path / f"{name}-00000.docs", "<i8")
        assert np.flatnonzero(tokens == 0).tolist() == [*(starts[1:] - 1), stream.tokens - 1]
        read.append([tokenizer.decode(ids[:-1]) for ids in np.split(tokens, starts[1:])])
    assert sorted(read[0] + read[1]) == sorted(paragraphs(150).strip().split("\n\n"))
    assert 10 < len(read[1]) < 50
    in_order = [text for text in paragraphs(150).strip().split("\n\n") if text in set(read[0])]
    assert read[0] == in_order

    # Documents added later leave every earlier one on its side.
    (tmp_path / "a.txt").write_text(paragraphs(160))
    assert corpus(tmp_path, config, "grown").returncode == 0
    path = made(tmp_path, "grown")[0]
    stream = TokenCorpus(path).split("validation")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    starts = np.fromfile(path / "validation-00000.docs", "<i8")
    pieces = np.split(stream.slice(0, stream.tokens), starts[1:])
    grown = {tokenizer.decode(ids[:-1]) for ids in pieces}
    assert grown & set(paragraphs(150).strip().split("\n\n")) == set(read[1])


def test_two_processes_make_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    config: dict[str, Any] = {"sources": [WORLD], "tokenizer": {"vocab_size": 400}}
    digests = []
    for store, threads in (("one", "1"), ("two", "3")):
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        assert corpus(tmp_path, config, store, **environment).returncode == 0
        digests.append(made(tmp_path, store)[1].digest)
    assert digests[0] == digests[1]
    for change in ({"seed": 1}, {"sources": [WORLD | {"seed": 6}]}):
        assert corpus(tmp_path, config | change, "three").returncode == 0
    others = (tmp_path / "three/corpus").glob("[!.]*")
    assert len({read_manifest(path).digest for path in others} | {digests[0]}) == 3


def test_an_existing_tokenizer_gives_the_tokens_it_always_gave(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(paragraphs(100))
    sources = [{"kind": "files", "paths": [f"{tmp_path}/a.txt"]}]
    trained = {"sources": sources, "tokenizer": {"vocab_size": 280}}
    assert corpus(tmp_path, trained, "first").returncode == 0
    first = made(tmp_path, "first")[0]
    taken = {"sources": sources, "tokenizer": {"file": str(first / "tokenizer.json")}}
    assert corpus(tmp_path, taken, "second").returncode == 0
    second, manifest = made(tmp_path, "second")
    names = sorted(file.path for file in manifest.files)
    assert names == sorted(file.path for file in read_manifest(first).files)
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.parametrize(
    ("content", "config", "says"),
    [
        ("one line\n", {}, "one document only, .*give more files, or set documents"),
        ("one line\n", {"tokenizer": {"vocab_size": 500}}, "hold one document only"),
        (" \n\n \n", {}, "hold no text, only white space"),
        (paragraphs(3), {"validation_share": 0.0001}, "none of the 3 documents falls into valid"),
        (paragraphs(30), {"tokenizer": {"vocab_size": 9000}}, r"is 9000; .*, \d+ is the most it"),
        (b"a\n\nb \xe9\n", {}, "is not UTF-8 at byte 5"),
        (None, {}, "fits no file"),
    ],
)
def test_input_that_is_no_corpus_ends_with_a_sentence_and_exit_2(
    tmp_path: Path, content: str | bytes | None, config: dict[str, Any], says: str
) -> None:
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / "a.txt").write_bytes(data)
    good = {
        "sources": [{"kind": "files", "paths": [f"{tmp_path}/a.txt"]}],
        "tokenizer": {"vocab_size": 260},
    }
    done = corpus(tmp_path, good | config)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(says, done.stderr), done.stderr
    assert not list((tmp_path / "store").glob("corpus/[!.]*"))
