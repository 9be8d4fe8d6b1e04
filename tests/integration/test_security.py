"""Hostile input: nothing that comes with a model, a dataset or a config is ever run.

Everything hostile here would create the file `canary` in the bench's directory. Each process is
started there, so that a module named by hostile input could be imported, were it ever looked for.
"""

import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.weights import write_safetensors
from tests.bad_input import bench as benches
from tests.bad_input.bench import Bench, config, content, fields, inputs
from tests.command import ROOT


class Opened:
    """Unpickled, it runs a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch canary",)


PICKLE = pickle.dumps(Opened())
CODE = "import os\nos.system('touch canary')\n"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    benches.build(tmp_path)
    (tmp_path / "evil.py").write_text(CODE)
    return Bench(tmp_path)


def run(bench: Bench, command: list[str], **changes: str) -> "subprocess.CompletedProcess[str]":
    """Run a command; whatever comes of it, nothing hostile was run and nothing crashed."""
    ran = bench.run(command, **changes)
    assert not list(bench.root.rglob("canary")), "something that was handed in has been run"
    assert "Traceback" not in ran.stdout + ran.stderr, ran.stderr
    return ran


def refused(bench: Bench, stage: str, *words: str) -> None:
    ran = run(bench, bench.stage(stage))
    assert ran.returncode == 2, ran.stdout + ran.stderr
    for word in words:
        assert word in ran.stderr


def test_the_canary_would_show(tmp_path: Path) -> None:
    """The hostile parts work where somebody does open them."""
    for program in ("import evil", f"import pickle; pickle.loads({PICKLE!r})"):
        (tmp_path / "evil.py").write_text(CODE)
        subprocess.run(["python3", "-c", program], cwd=tmp_path, check=True)
        (tmp_path / "canary").unlink()


@pytest.mark.parametrize(
    ("stage", "artifact", "file"),
    [
        ("convert", "checkpoint", "pytorch_model.bin"),
        ("export", "model", "pytorch_model.bin"),
        ("evaluate", "model", "model.ckpt"),
        ("finetune", "model", "model.pth"),
    ],
)
def test_a_model_as_a_pickle_is_refused(bench: Bench, stage: str, artifact: str, file: str) -> None:
    (bench.artifact(artifact) / "model.safetensors").unlink()
    content(artifact, file, PICKLE)(bench)
    refused(bench, stage, "holds no model.safetensors", f"{file} is a pickle and is never loaded")


def test_a_pickle_beside_the_weights_is_not_opened(bench: Bench) -> None:
    content("model", "pytorch_model.bin", PICKLE)(bench)
    content("model", "optimizer.pt", PICKLE)(bench)
    config({"precision": "int4"})(bench)
    refused(bench, "export", "export.precision: is int4")  # read whole, and refused for this only


def test_an_adapter_as_a_pickle_is_refused(bench: Bench) -> None:
    (bench.artifact("adapter") / "adapter_model.safetensors").unlink()
    content("adapter", "adapter_model.bin", PICKLE)(bench)
    refused(bench, "merge", "adapter_model.bin is a pickle and is never loaded")


def test_code_of_a_model_is_mentioned_and_left_behind(bench: Bench) -> None:
    for name in ("modeling_evil.py", "tokenization_evil.py"):
        content("checkpoint", name, CODE.encode())(bench)
    names = {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "evil.Evil"}
    fields("checkpoint", "config.json", {"auto_map": names})(bench)
    fields("checkpoint", "tokenizer_config.json", {"auto_map": {"AutoTokenizer": "evil.Evil"}})(
        bench
    )
    ran = run(bench, bench.stage("convert"))
    assert ran.returncode == 0, ran.stderr
    assert "config.json: auto_map is ignored; code of a model is never run" in ran.stdout
    assert "modeling_evil.py: is ignored; code of a model is never run" in ran.stdout
    (made,) = (path for path in (bench.store / "hf-model").iterdir() if path.name[0] not in ".23")
    assert not list(made.rglob("*.py"))
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in json.loads((made / name).read_bytes())


ESCAPES = {
    "globals": "{{ lipsum.__globals__['os'].system('touch canary') }}",
    "subclasses": "{% for c in ''.__class__.__mro__[1].__subclasses__() %}{{ c }}{% endfor %}",
    "our function": "{{ raise_exception.__globals__['__builtins__']['open']('canary', 'w') }}",
    "attr filter": "{{ cycler|attr('__init__')|attr('__globals__')|attr('get')('os') }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "change what is given": "{{ messages.append({'role': 'user'}) }}",
    "include": "{% include 'evil.py' %}",
    "import": "{% import 'evil.py' as evil %}",
    "never ends": "{% for i in range(1000000000) %}{{ i }}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "no number": "{{ 1 / 0 }}",
}


@pytest.mark.parametrize("template", ESCAPES.values(), ids=ESCAPES)
def test_a_chat_template_stays_in_its_sandbox(bench: Bench, template: str) -> None:
    content("model", "chat_template.jinja", template.encode())(bench)
    config({"chat_template": True})(bench)
    refused(bench, "evaluate", "evaluate: chat_template: the model's template fails: ")


def test_a_chat_template_that_is_not_asked_for_is_not_rendered(bench: Bench) -> None:
    content("model", "chat_template.jinja", ESCAPES["globals"].encode())(bench)
    config({"max_length": 4})(bench)
    refused(bench, "evaluate", "are too long for the model")  # past the template, no further


@pytest.mark.parametrize("form", ["../outside.safetensors", "{root}/outside.safetensors", "link"])
def test_weights_outside_of_the_model_are_not_read(bench: Bench, form: str) -> None:
    """A file that would do, if it were in the directory."""
    model, outside = bench.artifact("model"), bench.store / "hf-model" / "outside.safetensors"
    (model / "model.safetensors").rename(outside)
    (bench.root / "outside.safetensors").write_bytes(outside.read_bytes())
    shard = form.replace("{root}", str(bench.root))
    names = ["model.embed_tokens.weight"]
    index = json.dumps({"weight_map": dict.fromkeys(names, shard)})
    (model / "model.safetensors.index.json").write_text(index)
    if form == "link":
        (model / "link").write_bytes(outside.read_bytes())
    bench.remade(model)
    if form == "link":
        (model / "link").unlink()
        (model / "link").symlink_to(outside)
        refused(bench, "export", "link: leaves the artifact's directory")
    else:
        refused(bench, "export", "lies outside the directory")


def test_a_folder_that_is_a_link_is_no_part_of_an_artifact(bench: Bench) -> None:
    (bench.root / "folder").mkdir()
    (bench.root / "folder" / "secret.txt").write_text("secret")
    (bench.artifact("model") / "logs").symlink_to(bench.root / "folder")
    refused(bench, "export", "logs: is not in the manifest")
    ran = run(bench, bench.mindcycle("verify", "{model}"))
    assert ran.returncode == 1
    assert "logs: is not in the manifest" in ran.stdout


def test_dataset_scripts_do_not_run(bench: Bench) -> None:
    (bench.root / "data" / "script").mkdir(parents=True)
    (bench.root / "data" / "script" / "script.py").write_text(CODE)
    for source in (
        {"kind": "saved", "path": "data/script"},
        {"kind": "hub", "name": "data/script"},
    ):
        config({"sources.0": source, "allow_network": True})(bench)
        ran = run(bench, bench.stage("corpus"))
        assert ran.returncode == 2, ran.stderr
        assert "data/script: cannot be read as a dataset: " in ran.stderr
    bench.config.clear()
    task = {"suite": "mmlu", "data": "saved", "path": "data/script"}
    config({"tasks.0": task})(bench)
    refused(bench, "evaluate", "data/script holds no dataset written by DatasetDict.save_to_disk")


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch canary']",
        "!!python/object/new:os.system ['touch canary']",
        "!!python/name:evil.x",
        "!!python/module:evil",
        "!include evil.py",
        "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch canary']",
    ],
)
def test_tags_in_yaml_are_refused(bench: Bench, value: str) -> None:
    (bench.root / "run.yaml").write_text(f"name: x\ncorpus: {value}\n")
    ran = run(bench, bench.mindcycle("run", "run.yaml"))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "run.yaml: line 2: holds the tag " in ran.stderr


def test_tags_in_a_sampling_profile_and_in_an_override_are_refused(bench: Bench) -> None:
    tag = "!!python/object/apply:os.system ['touch canary']"
    (bench.root / "mine.yaml").write_text(f"do_sample: {tag}\n")
    for override, where in (
        ("evaluate.sampling=mine.yaml", "mine.yaml: line 1: holds the tag "),
        (f"evaluate.sampling={tag}", "line 1: holds the tag "),
    ):
        ran = run(bench, bench.mindcycle("check", "run.yaml", "--set", override))
        assert ran.returncode == 2
        assert where in ran.stderr


TOKENIZERS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "nested without end": (lambda t: t | {"model": "DEEP"}, "is no tokenizer: "),
    "panics when read": (
        lambda t: t | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        "is no tokenizer: Precompiled: ",
    ),
    "panics when used": (
        lambda t: t | {"post_processor": _processor("nowhere")},
        "cannot read every text: no entry found",
    ),
    "knows no unknown word": (
        lambda t: t | {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}},
        "cannot read every text: WordLevel error: Missing [UNK] token",
    ),
    "a pattern that is none": (
        lambda t: t | {"pre_tokenizer": _split("(")},
        "is no tokenizer: Oniguruma error: ",
    ),
    "huge ids": (
        lambda t: t | {"model": t["model"] | {"vocab": {"a": 4_000_000_000}}},
        "tokenizer.json: has token ids up to ",
    ),
    "padding to the end of memory": (
        lambda t: t | {"padding": _padding(10**12)},
        "export.precision: is int4",  # padding is switched off before any text is read
    ),
}


def _processor(token: str) -> dict[str, object]:
    single = [{"SpecialToken": {"id": token, "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}


def _split(pattern: str) -> dict[str, object]:
    where = {"Regex": pattern}
    return {"type": "Split", "pattern": where, "behavior": "Isolated", "invert": False}


def _padding(length: int) -> dict[str, object]:
    return {
        "strategy": {"Fixed": length},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|pad|>",
    }


@pytest.mark.parametrize(("spoil", "says"), TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_hostile_tokenizer(
    bench: Bench, spoil: Callable[[dict[str, Any]], dict[str, Any]], says: str
) -> None:
    path = bench.artifact("model") / "tokenizer.json"
    text = json.dumps(spoil(json.loads(path.read_bytes())))
    content("model", "tokenizer.json", text.replace('"DEEP"', "[" * 5000).encode())(bench)
    config({"precision": "int4"})(bench)
    refused(bench, "export", says)


def test_an_adapter_that_names_a_module_to_import(bench: Bench) -> None:
    mapping = {"base_model_class": "Evil", "parent_library": "evil"}
    fields("adapter", "adapter_config.json", {"auto_mapping": mapping})(bench)
    ran = run(bench, bench.stage("merge"))
    assert ran.returncode == 0, ran.stderr
    assert "auto_mapping is ignored; no module is imported because a file names it" in ran.stdout


def test_onnx_data_outside_of_the_bundle_is_not_read(bench: Bench) -> None:
    import onnx

    bundle = bench.artifact("bundle")
    (bundle / "model.onnx_data").rename(bench.store / "onnx-bundle" / "data")
    graph = onnx.load(str(bundle / "model.onnx"), load_external_data=False)
    for tensor in graph.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../data"
    (bundle / "model.onnx").write_bytes(graph.SerializeToString())
    bench.remade(bundle)
    inputs(model="bundle")(bench)
    refused(bench, "evaluate", "lies outside the bundle: '../data'")


def test_a_weight_file_that_claims_to_be_huge_takes_no_memory(bench: Bench) -> None:
    path = bench.artifact("model") / "model.safetensors"
    write_safetensors(path, [("x", (1,), np.dtype("<f4"))], [np.ones(1, "<f4")], {})
    header = {"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    bench.remade(bench.artifact("model"))
    refused(bench, "export", "model.safetensors: is cut short, tensor x reaches byte ")


def test_a_manifest_cannot_write_to_the_terminal(bench: Bench) -> None:
    escape = "\x1b]0;pwned\x07\x1b[2J"
    sources = [{"path": f"/nowhere/{escape}", "size": 1, "sha256": "0"}]
    fields("model", "manifest.json", {"headline": {"note": escape}, "sources": sources})(bench)
    for command in (["ls"], ["show", "{model}"], ["verify", "{model}"]):
        ran = run(bench, bench.mindcycle(*command))
        assert ran.returncode == 0, ran.stderr
        assert "pwned" in ran.stdout or command == ["verify", "{model}"]
        assert "\x1b" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("options", "host"), [([], "127.0.0.1"), (["--host", "0.0.0.0"], "0.0.0.0")]
)
def test_up_listens_on_loopback_unless_told_otherwise(
    bench: Bench, options: list[str], host: str
) -> None:
    """A stand-in for Prefect writes down how it was started, and ends."""
    package = bench.root / "stand_in" / "prefect"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    program = "import pathlib, sys\npathlib.Path('started').write_text(' '.join(sys.argv[1:]))\n"
    (package / "__main__.py").write_text(program)
    (bench.root / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    ran = run(
        bench,
        bench.mindcycle("up", "--port", "48917", *options),
        first_on_path=str(package.parent),
    )
    assert ran.returncode == 1
    assert "Prefect's server did not start" in ran.stderr
    started = (bench.root / "started").read_text()
    assert started == f"server start --host {host} --port 48917"
    warned = "Anyone who reaches 0.0.0.0:48917 can run flows here: Prefect asks no password."
    assert (warned in ran.stdout) == (host == "0.0.0.0")
