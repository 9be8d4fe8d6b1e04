"""A store with one small artifact of every kind, a right request for every stage, ways to spoil."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.adapter import PROJECTIONS, Adapter, Base, adapter_shapes, write_adapter
from artifacts.corpus import CorpusWriter
from artifacts.decision import Decision, JudgedReport, RuleResult, write_decision
from artifacts.digest import sha256_file
from artifacts.eval_report import EvalReport, Item, ScoredModel, write_report
from artifacts.hf_model import read_model
from artifacts.manifest import (
    MANIFEST,
    InputEntry,
    content_digest,
    list_files,
    read_manifest,
    write_manifest,
)
from artifacts.store import artifact_path
from artifacts.tokenizer_files import read_tokenizer, write_object
from stages.export.bundle import write_bundle
from tests.command import MINDCYCLE, ROOT, environment
from tests.reports import report_content
from tests.tiny_models import as_artifact, random_weights, tiny, write_hf, write_tokenizer

TASK = "mmlu_continuation"
SHAPE = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 24}

ROLES = {
    "corpus": "corpus",
    "checkpoint": "checkpoint",
    "model": "hf-model",
    "other": "hf-model",
    "adapter": "adapter",
    "candidate": "eval-report",
    "base": "eval-report",
    "bundle_scores": "eval-report",
    "decision": "decision",
    "bundle": "onnx-bundle",
    "proof": "proof",
    "bundle_decision": "decision",
}
"""What the store holds: a name here -> its kind. The identity is the name's place, in hex."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

INPUTS: dict[str, dict[str, str]] = {
    "corpus": {},
    "pretrain": {"corpus": "corpus"},
    "convert": {"checkpoint": "checkpoint"},
    "evaluate": {"model": "model"},
    "finetune": {"model": "model"},
    "merge": {"model": "model", "adapter": "adapter"},
    "gate": {"candidate": "candidate", "base": "base"},
    "export": {"model": "model"},
    "prove": {"bundle": "bundle", "model": "model"},
    "gate_bundle": {"candidate": "bundle_scores", "base": "candidate"},
    "release": {
        "decision": "decision",
        "bundle_decision": "bundle_decision",
        "bundle": "bundle",
        "proof": "proof",
        "model": "model",
        "candidate": "candidate",
        "bundle_scores": "bundle_scores",
    },
}
"""Stage -> role -> what of the store fills it when all is right."""

CONFIGS: dict[str, dict[str, Any]] = {
    "corpus": {
        "sources": [{"kind": "files", "paths": ["text.txt"]}],
        "tokenizer": {"vocab_size": 262},
        "validation_share": 0.3,
    },
    "pretrain": {
        "model": SHAPE,
        "batch": {"sequence_length": 8, "global_size": 2},
        "steps": 1,
        "device": "CPU",
    },
    "convert": {},
    "evaluate": {
        "tasks": [{"suite": "mmlu", "form": "continuation", "data": "local", "path": "mmlu"}],
        "device": "CPU",
    },
    "finetune": {
        "data": {"files": ["sft.jsonl"], "format": "alpaca"},
        "template": "question",
        "steps": 1,
        "max_length": 32,
        "device": "CPU",
    },
    "merge": {},
    "gate": {
        "rules": [
            {"rule": "floor", "task": TASK, "at_least": 0.3},
            {"rule": "gain_over_base", "task": TASK},
        ]
    },
    "export": {},
    "prove": {},
    "gate_bundle": {},
    "release": {},
}
"""Stage -> a config that is right, for files below the bench's own directory."""

PACKAGES = {"prove": "export", "gate_bundle": "gate"}
"""Stages that stand in another's package."""


def build(directory: Path) -> None:
    """Fill an empty directory: the files that configs name, and a store of every kind."""
    _write_files(directory)
    store = directory / "store"

    def make(name: str, fill: Callable[[Path], Any], **inputs: Path) -> Path:
        entries = {role: _entry(path) for role, path in inputs.items()}
        return as_artifact(store, ROLES[name], fill, identity=_identity(name), inputs=entries)

    shape = tiny(**SHAPE, kv_heads=1, head_dim=8, max_positions=48)
    make("corpus", lambda d: _write_corpus(d, directory))
    make("checkpoint", lambda d: write_hf(d, shape))
    model = make("model", lambda d: write_hf(d, shape))
    make("other", lambda d: write_hf(d, shape, random_weights(shape, seed=1)))
    make("adapter", lambda d: write_adapter(d, _adapter(model)))
    bundle = make("bundle", lambda d: _write_bundle(d, model), model=model)
    good, bad = [True] * 30, [False] * 25 + [True] * 5
    candidate = make("candidate", lambda d: _write_scores(d, model, good, "mindspore"))
    make("base", lambda d: _write_scores(d, model, bad, "mindspore"))
    scores = make("bundle_scores", lambda d: _write_scores(d, bundle, good, "onnxruntime"))
    make("decision", lambda d: write_decision(d, _decision(candidate)), candidate=candidate)
    make("proof", _write_proof, bundle=bundle, model=model)
    beside = _decision(scores, candidate)
    make("bundle_decision", lambda d: write_decision(d, beside), candidate=scores, base=candidate)


def _identity(name: str) -> str:
    return f"{list(ROLES).index(name):x}" * 64


def _entry(path: Path) -> InputEntry:
    manifest = read_manifest(path)
    return InputEntry(kind=manifest.kind, identity=manifest.identity, digest=manifest.digest)


def _write_files(directory: Path) -> None:
    paragraphs = [f"The {i}th city lies by a river, north of here." for i in range(30)]
    (directory / "text.txt").write_text("\n\n".join(paragraphs))
    examples = [{"instruction": f"Where is {i}?", "output": "There."} for i in range(6)]
    (directory / "sft.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))
    for suite, split in (("mmlu", "dev"), ("mmlu", "test"), ("ceval", "dev"), ("ceval", "val")):
        (directory / suite / split).mkdir(parents=True)
        (directory / suite / split / f"law_{split}.csv").write_text(_questions(suite, split))
    (directory / "run.yaml").write_text((ROOT / "configs" / "tiny.yaml").read_text())
    (directory / "tokenizer").mkdir()
    write_tokenizer(directory / "tokenizer")


def _questions(suite: str, split: str) -> str:
    """Four questions as the suite publishes them."""
    rows = [f"Number {i}?,one,two,three,four,{letter}" for i, letter in enumerate("ABCD")]
    if suite == "ceval":
        more = ",explanation" if split == "dev" else ""
        rows = [f"{i},{row}{',because' if more else ''}" for i, row in enumerate(rows)]
        rows.insert(0, f"id,question,A,B,C,D,answer{more}")
    return "\n".join(rows) + "\n"


def _write_corpus(directory: Path, files: Path) -> None:
    write_tokenizer(directory)
    with CorpusWriter(directory, vocab_size=260, eos_id=0, pad_id=1) as writer:
        for split in ("train", "validation"):
            for length in (20, 30):
                writer.add(split, [5] * length, length)
    shutil.copytree(files / "mmlu", directory / "world" / "mmlu")
    write_object(directory / "world" / "mmlu.groups.json", {})
    shutil.copyfile(files / "sft.jsonl", directory / "world" / "sft.jsonl")


def _adapter(model: Path) -> Adapter:
    manifest, shape = read_manifest(model), read_model(model).architecture
    tensors = {}
    for i, (module, (a, b)) in enumerate(adapter_shapes(shape, PROJECTIONS, 2).items()):
        rng = np.random.default_rng(i)
        tensors[module] = 0.1 * rng.standard_normal(a, "f4"), 0.1 * rng.standard_normal(b, "f4")
    base = Base(manifest.digest, manifest.identity)
    return Adapter(2, 4.0, PROJECTIONS, tensors, base)


def _write_bundle(directory: Path, model: Path) -> None:
    write_bundle(directory, read_model(model), read_tokenizer(model), {"key": "value"})


def _write_proof(directory: Path) -> None:
    agreement = {
        "passed": True,
        "precision": "fp32",
        "cases": [{}],
        "longest": 8,
        "max_abs": 1e-6,
        "max_scaled": 1e-6,
        "threshold": 1e-5,
    }
    write_object(directory / "agreement.json", agreement)


def _scored(model: Path) -> ScoredModel:
    manifest = read_manifest(model)
    return ScoredModel(kind=manifest.kind, identity=manifest.identity, digest=manifest.digest)


def _write_scores(directory: Path, model: Path, right: list[bool], backend: str) -> None:
    content, items = report_content({TASK: right})
    content["model"] = _scored(model).model_dump()
    content["conditions"]["backend"] = backend
    write_report(directory, EvalReport.model_validate(content), map(Item.model_validate, items))


def _decision(candidate: Path, base: Path | None = None) -> Decision:
    """About a model by itself, or about a bundle beside its model."""
    rule = RuleResult(
        rule="same_choices" if base else "floor",
        task="all tasks" if base else TASK,
        passed=True,
        reason="enough",
        candidate=1.0,
        threshold=0.3,
        confidence=0.95,
        items=30,
        clusters=30,
    )
    judged = {"candidate": _judged(candidate), "base": _judged(base) if base else None}
    return Decision(outcome="approved", **judged, baseline=None, rules=[rule])


def _judged(report: Path) -> JudgedReport:
    manifest = read_manifest(report)
    content = json.loads((report / "report.json").read_bytes())
    return JudgedReport(
        report_digest=manifest.digest,
        report_identity=manifest.identity,
        model=ScoredModel.model_validate(content["model"]),
    )


@dataclass
class Bench:
    """One test's copy of what `build` has made."""

    root: Path
    config: dict[str, Any] = field(default_factory=dict)
    """What is put into the stage's right config, by dotted path."""
    inputs: dict[str, Path | None] = field(default_factory=dict)
    """Roles that are filled otherwise than in INPUTS, or not at all (None)."""
    request: dict[str, Any] = field(default_factory=dict)
    """What is put into the request itself."""

    taken: socket.socket | None = None
    """A socket that listens, for whoever wants its port."""

    @property
    def store(self) -> Path:
        return self.root / "store"

    def artifact(self, name: str) -> Path:
        """The directory of what the store calls `name` here."""
        return artifact_path(self.store, ROLES[name], _identity(name))

    def remade(self, artifact: Path) -> None:
        """Make the manifest say what the files are: they are wrong, but nobody has changed them."""
        manifest = read_manifest(artifact)
        files = list_files(artifact)
        digest = content_digest(manifest.kind, files)
        write_manifest(artifact, manifest.model_copy(update={"files": files, "digest": digest}))

    def stage(self, stage: str) -> list[str]:
        """The command that runs a stage's request as it is now."""
        inputs = {role: self.artifact(name) for role, name in INPUTS[stage].items()}
        inputs = {role: path for role, path in {**inputs, **self.inputs}.items() if path}
        request = {
            "stage": stage,
            "config": with_paths(CONFIGS[stage], self.config),
            "inputs": {role: str(path) for role, path in inputs.items()},
            "store": str(self.store),
            **self.request,
        }
        path = self.root / "request.json"
        path.write_text(json.dumps(request))
        return [sys.executable, "-m", f"stages.{PACKAGES.get(stage, stage)}", str(path)]

    def mindcycle(self, *arguments: str) -> list[str]:
        """The command line; `{root}`, `{store}` and artifacts' names in braces are filled in."""
        names = {name: str(self.artifact(name)) for name in ROLES}
        names |= {"root": str(self.root), "store": str(self.store)}
        filled = []
        for argument in arguments:
            for name, path in names.items():
                argument = argument.replace(f"{{{name}}}", path)
            filled.append(argument)
        return [*MINDCYCLE, *filled]

    def run(self, command: list[str], **changes: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, in the bench's directory."""
        return subprocess.run(
            command,
            cwd=self.root,
            env=environment(**ENVIRONMENT, PREFECT_HOME=str(self.root / "home"), **changes),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def contents(self) -> dict[str, str]:
        """Every file below and its hash. Locks, logs and requests are no one's loss or gain."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file() and not name.endswith(".lock") and "store/logs/" not in name:
                found[name] = sha256_file(path)
        return found


def with_paths(value: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of plain data with other values at dotted paths; `...` removes."""
    value = json.loads(json.dumps(value))
    for path, new in changes.items():
        target, parts = value, path.split(".")
        for part in parts[:-1]:
            listed = isinstance(target, list)
            target = target[int(part)] if listed else target.setdefault(part, {})
        last: Any = parts[-1] if isinstance(target, dict) else int(parts[-1])
        if new is ...:
            del target[last]
        else:
            target[last] = new
    return value


Spoil = Callable[[Bench], None]


def config(changes: Mapping[str, Any]) -> Spoil:
    """Other values in the stage's config."""
    return lambda bench: bench.config.update(changes)


def request(**changes: Any) -> Spoil:
    """Other values in the request itself."""
    return lambda bench: bench.request.update(changes)


def inputs(**roles: str | None) -> Spoil:
    """Roles filled by other artifacts, by paths below the root, or not at all."""

    def spoil(bench: Bench) -> None:
        for role, name in roles.items():
            known = bench.artifact(name) if name in ROLES else bench.root / str(name)
            bench.inputs[role] = None if name is None else known

    return spoil


def fields(name: str, file: str, changes: Mapping[str, Any]) -> Spoil:
    """Other values in a JSON file of an artifact, whose manifest says what it holds then.

    A manifest so changed has no seal: it is one that was made so, not one damaged afterwards.
    """

    def spoil(bench: Bench) -> None:
        path = bench.artifact(name) / file
        record = json.loads(path.read_bytes())
        if file == MANIFEST:
            record.pop("seal", None)
        path.write_text(json.dumps(with_paths(record, changes)))
        if file != MANIFEST:
            bench.remade(bench.artifact(name))

    return spoil


def content(name: str, file: str, change: bytes | Callable[[bytes], bytes]) -> Spoil:
    """Another content of a file of an artifact, whose manifest says what it holds then."""

    def spoil(bench: Bench) -> None:
        path = bench.artifact(name) / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(change if isinstance(change, bytes) else change(path.read_bytes()))
        if file != MANIFEST:
            bench.remade(bench.artifact(name))

    return spoil


def listening(bench: Bench) -> None:
    """Somebody else's server runs on this machine."""
    bench.taken = socket.create_server(("127.0.0.1", 0))


def without(name: str, *files: str) -> Spoil:
    """An artifact that never had these files."""

    def spoil(bench: Bench) -> None:
        for file in files:
            (bench.artifact(name) / file).unlink()
        bench.remade(bench.artifact(name))

    return spoil


def tampered(name: str, file: str, change: Callable[[bytes], bytes] | None) -> Spoil:
    """A file that somebody changed or took away (None) behind the manifest's back."""

    def spoil(bench: Bench) -> None:
        path = bench.artifact(name) / file
        path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))

    return spoil


def file(name: str, content: bytes | str | Callable[[bytes], bytes] | None) -> Spoil:
    """A file that a config names, with another content, or gone (None)."""

    def spoil(bench: Bench) -> None:
        path = bench.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        elif callable(content):
            path.write_bytes(content(path.read_bytes()))
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return spoil


def half(data: bytes) -> bytes:
    """The first half."""
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    """With the last bit another."""
    return data[:-1] + bytes([data[-1] ^ 1])
