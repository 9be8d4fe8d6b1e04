"""Whatever a user hands in is read, or refused as BadInput: never with another exception.

What is right is spoiled in one place: a key goes missing, or gets any JSON value, deep, long or
huge ones included. Texts and bytes are tried as they come, too.
"""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from artifacts.adapter import BASE, TENSORS, read_adapter, write_adapter
from artifacts.adapter import CONFIG as ADAPTER_CONFIG
from artifacts.architecture import read_architecture
from artifacts.corpus import INFO, CorpusWriter, TokenCorpus
from artifacts.decision import DECISION, Decision, JudgedReport, RuleResult, read_decision
from artifacts.errors import BadInput
from artifacts.eval_report import (
    ITEMS,
    REPORT,
    EvalReport,
    Item,
    ScoredModel,
    read_items,
    read_report,
    write_report,
)
from artifacts.hf_model import read_model, tokenizer_problems
from artifacts.manifest import MANIFEST, problems_with_files, read_manifest
from artifacts.onnx_bundle import GENAI_CONFIG, OnnxModel
from artifacts.tokenizer_files import read_tokenizer
from artifacts.weights import INDEX, SINGLE, Weights, write_safetensors
from artifacts.yaml_text import parse_yaml
from flows.config import check_config, read_yaml_file
from flows.lifecycle import STEPS, RunConfig
from flows.overrides import apply_overrides
from stages.corpus.config import FilesSource
from stages.corpus.documents import documents
from stages.corpus.tokenizer import open_tokenizer
from stages.evaluate.questions import read_ceval, read_mmlu
from stages.evaluate.text import TextCodec
from stages.finetune.examples import read_examples
from stages.merge.record import RECORD, read_record
from stages.plan import plan
from stages.process import read_request
from tests.command import ROOT
from tests.reports import report_content
from tests.tiny_models import as_artifact, tiny, write_hf
from tests.unit.test_adapter import make_adapter

FEW = settings(max_examples=40)
"""Enough for what is slow or tried on several files."""
HUGE = 10**400
"""No float holds it; Python itself refuses to read or write numbers ten times as long."""
DEEP: list[Any] = []
for _ in range(30):
    DEEP = [DEEP]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([HUGE, -HUGE, 1 << 62, 0.5, float("nan"), float("inf"), DEEP, [1] * 70])
    | st.sampled_from(
        [
            "",
            "a",
            "../x",
            "/etc/passwd",
            "a\0b",
            "ä" * 300,
            "eos_token",
            "\x1b[2J",
            "\ud800",
            "\ud83d\ude00",
        ]
    )
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "type", "rope_type", "a"]), inner, max_size=2)
    ),
    max_leaves=5,
)
raw = (
    st.binary(max_size=80)
    | st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.sampled_from(
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"[" * 5000,
            b'{"a":' * 5000,
            b"9" * 5000,
            b'{"a": ' + b"1" * 5000,
        ]
    )
)
"""A file's bytes, whatever its form."""


@st.composite
def spoiled(draw: st.DrawFn, right: Any) -> Any:
    """`right` with one thing in it removed, replaced, or added."""
    if isinstance(right, dict) and right and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(right)))
        if draw(st.booleans()):
            return {**right, key: draw(spoiled(right[key]))}
        if draw(st.booleans()):
            return {name: value for name, value in right.items() if name != key}
        return {**right, draw(st.text(max_size=3)): draw(values)}
    if isinstance(right, list) and right and draw(st.integers(0, 3)):
        index = draw(st.integers(0, len(right) - 1))
        return [draw(spoiled(each)) if i == index else each for i, each in enumerate(right)]
    return draw(values)


def as_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def read_or_refused(read: Callable[[], Any]) -> Any:
    """The result, or None after a BadInput that says something. Any other exception fails."""
    try:
        return read()
    except BadInput as error:
        problems = error.problems
    assert problems
    for problem in problems:
        assert problem.strip()
        assert "\n" not in problem.strip("\n"), "one problem is one line"
        assert "pydantic" not in problem
    return None


class Place:
    """A directory with right files, of which one at a time is replaced."""

    def __init__(self, directory: Path):
        self.directory = directory

    def json(self, name: str) -> Any:
        return json.loads((self.directory / name).read_bytes())

    def read(self, name: str, content: bytes, read: Callable[[Path], Any]) -> Any:
        path = self.directory / name
        before = path.read_bytes() if path.is_file() else None
        path.write_bytes(content)
        try:
            return read_or_refused(lambda: read(self.directory))
        finally:
            path.unlink()
            if before is not None:
                path.write_bytes(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("model")
    write_hf(directory, tiny(hidden_size=8, heads=2, kv_heads=1, head_dim=4, intermediate_size=8))
    return Place(directory)


def opened(directory: Path) -> None:
    """All that convert and export look at before they work."""
    read = read_model(directory)
    assert read.dtype
    tokenizer_problems(read, read_tokenizer(directory))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@given(data=st.data())
@FEW
def test_a_models_configs(model: Place, name: str, data: st.DataObject) -> None:
    content = as_bytes(data.draw(spoiled(model.json(name)))) if data.draw(st.booleans()) else None
    content = content if content is not None else data.draw(raw)
    model.read(name, content, opened)
    model.read(name, content, TextCodec)
    if name == "config.json":
        model.read(name, content, read_architecture)


FIELDS = [
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "layer_types",
    "quantization_config",
    "pretraining_tp",
    "sliding_window",
    "use_sliding_window",
    "num_key_value_heads",
    "eos_token_id",
    "auto_map",
]


@given(field=st.sampled_from(FIELDS), value=values)
@example(field="partial_rotary_factor", value="half")
@example(field="rope_parameters", value=["yarn"])
@example(field="layer_types", value=5)
@example(field="num_attention_heads", value=0)
@example(field="num_hidden_layers", value=1 << 62)
@example(field="rope_theta", value=HUGE)
@example(field="model_type", value=[])
@example(field="eos_token_id", value="end")
def test_any_value_of_a_field_that_is_not_written_by_us(
    model: Place, field: str, value: Any
) -> None:
    model.read("config.json", as_bytes({**model.json("config.json"), field: value}), opened)


@given(data=st.data())
@FEW
def test_tokenizer_files(model: Place, data: st.DataObject) -> None:
    content = data.draw(spoiled(model.json("tokenizer.json")).map(as_bytes) | raw)
    model.read("tokenizer.json", content, read_tokenizer)
    model.read("tokenizer.json", content, lambda d: open_tokenizer(d / "tokenizer.json", None))


@given(content=st.fixed_dictionaries({"weight_map": values}).map(as_bytes) | raw)
def test_weight_maps(model: Place, content: bytes) -> None:
    model.read(INDEX, content, Weights)


def with_header(header: Any) -> bytes:
    text = header if isinstance(header, bytes) else as_bytes(header)
    return len(text).to_bytes(8, "little") + text + b"\0" * 64


HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [1], "data_offsets": [16, 18]},
}


@given(content=(spoiled(HEADER) | raw).map(with_header))
def test_safetensors_headers(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    def every_tensor(directory: Path) -> None:
        weights = Weights(directory)
        for name in weights:
            weights.raw(name).tobytes()

    Place(tmp_path_factory.mktemp("any")).read(SINGLE, content, every_tensor)


@pytest.mark.parametrize(
    "shape", [[1] * 40, [HUGE], [1 << 40, 1 << 40, 0], [True, True, 4], [2.0, 2.0]]
)
def test_shapes_that_numpy_has_not(tmp_path: Path, shape: list[Any]) -> None:
    header = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 if shape[0] == 1 else 0]}}

    def read(directory: Path) -> bytes:
        return Weights(directory).raw("a").tobytes()

    Place(tmp_path).read(SINGLE, with_header(header), read)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("adapter")
    write_adapter(directory, make_adapter())
    return Place(directory)


@pytest.mark.parametrize("name", [ADAPTER_CONFIG, BASE])
@given(data=st.data())
@FEW
def test_adapter_configs(adapter: Place, name: str, data: st.DataObject) -> None:
    content = data.draw(spoiled(adapter.json(name)).map(as_bytes) | raw)
    adapter.read(name, content, read_adapter)


@given(field=st.sampled_from(["r", "lora_alpha", "target_modules", "bias"]), value=values)
@example(field="lora_alpha", value=HUGE)
@example(field="lora_alpha", value=float("nan"))
@example(field="r", value=HUGE)
@example(field="target_modules", value=[[]])
def test_any_value_of_an_adapters_setting(adapter: Place, field: str, value: Any) -> None:
    content = as_bytes({**adapter.json(ADAPTER_CONFIG), field: value})
    adapter.read(ADAPTER_CONFIG, content, read_adapter)


MODULE = "base_model.model.model.layers.0.self_attn.q_proj"


@given(
    names=st.lists(
        st.sampled_from([f"{MODULE}.lora_{x}.weight" for x in "ABC"] + [MODULE, "x", ""]),
        unique=True,
        max_size=3,
    ),
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from(["f4", "f2", "i8", "?"]),
)
def test_adapter_tensors(
    adapter: Place, names: list[str], shape: list[int], dtype: str, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("any") / TENSORS
    entries = [(name, tuple(shape), np.dtype(dtype)) for name in names]
    write_safetensors(path, entries, (np.ones(shape, dtype) for _ in names), {})
    adapter.read(TENSORS, path.read_bytes(), read_adapter)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Place:
    def fill(directory: Path) -> None:
        (directory / "a").write_text("a")

    return Place(as_artifact(tmp_path_factory.mktemp("store"), "corpus", fill))


def verified(directory: Path) -> None:
    problems_with_files(directory, read_manifest(directory))


@given(data=st.data())
@FEW
def test_manifests(artifact: Place, data: st.DataObject) -> None:
    content = data.draw(spoiled(artifact.json(MANIFEST)).map(as_bytes) | raw)
    artifact.read(MANIFEST, content, verified)


@given(path=values | st.sampled_from(["a" * 5000, "a/" * 3000, "a/b", "."]))
def test_paths_of_a_manifest(artifact: Place, path: Any) -> None:
    manifest = artifact.json(MANIFEST)
    manifest["files"][0]["path"] = path
    artifact.read(MANIFEST, as_bytes(manifest), verified)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("report")
    content, items = report_content({"task": [True, False]})
    write_report(directory, EvalReport.model_validate(content), map(Item.model_validate, items))
    return Place(directory)


@given(data=st.data())
@FEW
def test_eval_reports(report: Place, data: st.DataObject) -> None:
    content = data.draw(spoiled(report.json(REPORT)).map(as_bytes) | raw)
    report.read(REPORT, content, read_report)
    lines = (report.directory / ITEMS).read_bytes().splitlines()
    line = data.draw(spoiled(json.loads(lines[0])).map(as_bytes) | raw)
    report.read(ITEMS, b"\n".join([lines[1], line]), read_items)


scored = ScoredModel(kind="hf-model", identity="a", digest="b")
judged = JudgedReport(report_digest="c", report_identity="d", model=scored)
rule = RuleResult(
    rule="floor",
    task="t",
    passed=True,
    reason="r",
    candidate=0.5,
    threshold=0.1,
    confidence=0.95,
    items=2,
    clusters=2,
)
decision = Decision(outcome="approved", candidate=judged, base=None, baseline=None, rules=[rule])


@given(content=spoiled(decision.model_dump(mode="json")).map(as_bytes) | raw)
def test_decisions(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    Place(tmp_path_factory.mktemp("any")).read(DECISION, content, read_decision)


@given(content=spoiled({"format": 1, "merges": [], "proof": {}}).map(as_bytes) | raw)
def test_merge_records(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    Place(tmp_path_factory.mktemp("any")).read(RECORD, content, read_record)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("corpus")
    with CorpusWriter(directory, vocab_size=9, eos_id=0, pad_id=1) as writer:
        for split in ("train", "validation"):
            writer.add(split, [3, 4], 2)
            writer.add(split, [5], 1)
    return Place(directory)


@given(data=st.data())
@FEW
def test_corpora(corpus: Place, data: st.DataObject) -> None:
    def both_splits(directory: Path) -> None:
        opened = TokenCorpus(directory)
        for name in ("train", "validation"):
            stream = opened.split(name)
            stream.slice(0, stream.tokens)

    corpus.read(INFO, data.draw(spoiled(corpus.json(INFO)).map(as_bytes) | raw), both_splits)
    name = data.draw(st.sampled_from(["train-00000.bin", "train-00000.docs"]))
    corpus.read(name, data.draw(st.binary(max_size=40)), both_splits)


GENAI = {
    "model": {
        "vocab_size": 9,
        "context_length": 4,
        "eos_token_id": 0,
        "decoder": {"num_hidden_layers": 1, "num_key_value_heads": 1, "head_size": 2},
    }
}


@given(content=spoiled(GENAI).map(as_bytes) | raw, graph=st.binary(max_size=40))
def test_bundles(tmp_path_factory: pytest.TempPathFactory, content: bytes, graph: bytes) -> None:
    directory = tmp_path_factory.mktemp("any")
    (directory / "config.json").write_text("{}")
    (directory / "model.onnx").write_bytes(graph)
    assert Place(directory).read(GENAI_CONFIG, content, OnnxModel) is None


REQUEST = {"stage": "merge", "config": {"max_shard_size": "2GB"}, "inputs": {}, "store": "s"}


@given(content=spoiled(REQUEST).map(as_bytes) | raw)
def test_requests(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    Place(tmp_path_factory.mktemp("any")).read("r", content, lambda d: read_request(d / "r"))


TEXT = (ROOT / "configs" / "tiny.yaml").read_text()
TINY = parse_yaml(TEXT, "tiny")

SPECS = {step.spec.name: step.spec for step in STEPS}


@pytest.mark.parametrize("stage", SPECS)
@given(data=st.data())
@FEW
def test_plans(artifact: Place, stage: str, data: st.DataObject) -> None:
    spec, inputs = SPECS[stage], dict.fromkeys(SPECS[stage].inputs, str(artifact.directory))
    right = {"stage": stage, "config": TINY.get(stage, {}), "inputs": inputs, "store": "store"}
    request = data.draw(spoiled(right).map(as_bytes))
    artifact.read("r", request, lambda d: plan(spec, read_request(d / "r")))


@given(spoiled(TINY))
@FEW
def test_run_configs(data: Any) -> None:
    if isinstance(data, dict):
        read_or_refused(lambda: check_config(RunConfig, data))


@given(data=st.data())
@FEW
def test_config_files_with_a_line_changed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = TEXT.splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    pieces = st.text(
        st.sampled_from("ab1.-:{}[]&*!|>#\"' \t~e<,%@"), max_size=12
    ) | st.sampled_from(
        ["9" * 5000, "[" * 3000, "&a [*a]", "name: &a [1, *b]", "<<: *a", "a: 1e999", "- " * 3000]
    )
    lines[place] = data.draw(pieces)
    content = "\n".join(lines).encode()
    Place(tmp_path_factory.mktemp("any")).read(
        "r.yaml", content, lambda d: check_config(RunConfig, read_yaml_file(d / "r.yaml"))
    )


def paths_in(value: Any) -> list[str]:
    """Every path of a config, as an override writes it."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in entries:
        found.append(str(key))
        if isinstance(item, dict | list):
            found += [f"{key}.{rest}" for rest in paths_in(item)]
    return found


@given(
    st.lists(
        st.tuples(
            st.sampled_from(paths_in(TINY)) | st.text(string.printable, max_size=8),
            st.sampled_from(["", ".x", ".0", ".99", "." + "9" * 5000, ".²", "."]),
            values.map(json.dumps) | st.text(max_size=8) | st.just("9" * 5000),
        ),
        max_size=3,
    )
)
@FEW
def test_overrides_of_a_config(overrides: list[tuple[str, str, str]]) -> None:
    def overridden() -> None:
        data = parse_yaml(TEXT, "tiny")
        apply_overrides(data, [f"{path}{more}={value}" for path, more, value in overrides])
        check_config(RunConfig, data)

    read_or_refused(overridden)


@given(st.sampled_from(paths_in(TINY)), st.integers() | st.booleans() | st.none() | st.text())
@FEW
def test_an_override_says_what_json_says(path: str, value: Any) -> None:
    data = parse_yaml(TEXT, "tiny")
    apply_overrides(data, [f"{path}={json.dumps(value)}"])
    for part in path.split("."):
        data = data[int(part) if isinstance(data, list) else part]
    assert data == value
    assert type(data) is type(value)


records = st.fixed_dictionaries(
    {"instruction": st.text(), "output": st.text()}, optional={"input": st.text() | st.none()}
)


@given(st.lists(records, min_size=1), st.booleans(), st.booleans())
@FEW
def test_instructions_come_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, written: list[Any], array: bool, ascii: bool
) -> None:
    # Outside of ASCII, JSON may hold line separators that Python's splitlines would cut at.
    dumps = [json.dumps(record, ensure_ascii=ascii) for record in written]
    text = f"[{','.join(dumps)}]" if array else "\n".join(dumps)
    place = Place(tmp_path_factory.mktemp("any"))
    read = place.read("r", text.encode(), lambda d: read_examples([d / "r"], "alpaca"))
    assert [(e.turns[0].content, e.turns[0].context, e.turns[1].content) for e in read] == [
        (record["instruction"], record.get("input") or "", record["output"]) for record in written
    ]


ALPACA = {"instruction": "a", "input": "b", "output": "c"}
MESSAGES = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@pytest.mark.parametrize(("form", "right"), [("alpaca", ALPACA), ("messages", MESSAGES)])
@given(data=st.data())
@FEW
def test_instruction_files(
    tmp_path_factory: pytest.TempPathFactory, form: Any, right: Any, data: st.DataObject
) -> None:
    line = data.draw(spoiled(right).map(as_bytes) | raw)
    content = data.draw(st.sampled_from([line, as_bytes(right) + b"\n" + line, b"[" + line + b"]"]))
    place = Place(tmp_path_factory.mktemp("any"))
    place.read("r", content, lambda d: read_examples([d / "r"], form))


FORMATS = [".jsonl", ".csv", ".tsv", ".txt", ".parquet"]


@pytest.mark.parametrize("ending", FORMATS)
@given(data=st.data())
@FEW
def test_corpus_files(
    tmp_path_factory: pytest.TempPathFactory, ending: str, data: st.DataObject
) -> None:
    content = {".jsonl": as_bytes({"text": "a"}), ".csv": b"text,b\na,1", ".tsv": b"text\tb\na\t1"}
    more = data.draw(spoiled({"text": "a"}).map(as_bytes) | raw)
    directory = tmp_path_factory.mktemp("any")
    name = f"x{ending}"
    source = FilesSource.model_validate({"kind": "files", "paths": [str(directory / name)]})
    Place(directory).read(
        name,
        content.get(ending, b"a") + b"\n" + more,
        lambda d: [text.encode() for text in documents([source])],
    )


@given(st.lists(st.text().filter(lambda text: text and not text.isspace()), min_size=1))
def test_jsonl_comes_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    content = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    directory = tmp_path_factory.mktemp("any")
    source = FilesSource.model_validate({"kind": "files", "paths": [str(directory / "x.jsonl")]})
    read = Place(directory).read("x.jsonl", content.encode(), lambda d: list(documents([source])))
    assert read == texts


CELLS = st.text(string.ascii_letters + ',"\n\r\0; ü', max_size=6)
MMLU = b'"q, 1",a,b,c,d,A\n'
CEVAL = b"id,question,A,B,C,D,answer,explanation\n0,q,a,b,c,d,A,e\n"


@pytest.mark.parametrize(("read", "right"), [(read_mmlu, MMLU), (read_ceval, CEVAL)])
@given(
    more=st.lists(st.lists(CELLS, max_size=9).map(",".join), max_size=3).map("\n".join) | raw,
    first=st.booleans(),
)
@FEW
def test_question_files(
    tmp_path_factory: pytest.TempPathFactory, read: Any, right: bytes, more: Any, first: bool
) -> None:
    content = more.encode() if isinstance(more, str) else more
    place = Place(tmp_path_factory.mktemp("any"))
    place.read("x", content if first else right + content, lambda d: read(d / "x"))
