"""`mindcycle import`, and training that starts from what it brought in."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from artifacts.adapter import read_adapter
from artifacts.architecture import read_architecture
from artifacts.hf_model import read_model
from artifacts.manifest import read_manifest
from artifacts.weights import SafetensorsFile, write_safetensors
from tests.bad_input import bench as benches
from tests.command import environment, mindcycle
from tests.tiny_models import tiny, write_hf

ROPE = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def model_from_elsewhere(directory: Path) -> None:
    """bf16 with norms in fp32, a field and files that nobody needs, its own generation settings."""
    write_hf(directory, tiny(rope_scaling=ROPE, max_positions=48), dtype="bf16")
    path = directory / "model.safetensors"
    file = SafetensorsFile(path)
    arrays = {name: np.array(file.read(name)) for name in reversed(file.names())}
    arrays |= {n: a.astype(np.float32) for n, a in arrays.items() if n.endswith("norm.weight")}
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    entries = [(name, array.shape, array.dtype) for name, array in arrays.items()]
    write_safetensors(path, entries, arrays.values(), {})
    config = json.loads((directory / "config.json").read_text())
    config |= {"_name_or_path": "a/b", "auto_map": {"AutoModel": "model.Model"}}
    (directory / "config.json").write_text(json.dumps(config))
    generation = {"do_sample": True, "temperature": 0.6, "eos_token_id": [0, 3]}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    (directory / "model.py").write_text("raise SystemExit('was run')")
    (directory / "chat_template.jinja").write_text("{{ messages }}")


def stage(name: str, package: str, config: dict[str, Any], store: Path, **inputs: Path) -> str:
    path = store / f"{name}.json"
    request = {"stage": name, "config": config, "store": str(store)}
    request["inputs"] = {role: str(each) for role, each in inputs.items()}
    path.write_text(json.dumps(request))
    ran = subprocess.run(
        [sys.executable, "-m", package, str(path)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def only(store: Path, kind: str, beside: set[str] = frozenset()) -> Path:
    (found,) = (p for p in (store / kind).glob("[0-9a-f]*") if p.name not in beside)
    return found


def test_what_is_imported_keeps_its_bits_and_training_goes_on_from_it(tmp_path: Path) -> None:
    source, store = tmp_path / "elsewhere", tmp_path / "store"
    model_from_elsewhere(source)
    ran = mindcycle("import", source, "--store", store)
    assert ran.returncode == 0, ran.stderr
    assert "code of a model is never run" in ran.stdout
    taken = only(store, "checkpoint")
    assert read_manifest(taken).headline["dtype"] == "bfloat16 and float32"
    model, original = read_model(taken), read_model(source)
    assert model.architecture == original.architecture
    for name in original.weights:
        assert model.weights.raw(name).tobytes() == original.weights.raw(name).tobytes()
    names = {path.name for path in taken.iterdir()}
    assert "model.py" not in names
    assert "chat_template.jinja" in names
    assert "auto_map" not in (taken / "config.json").read_text()
    assert json.loads((taken / "generation_config.json").read_text())["temperature"] == 0.6
    assert "done already" in mindcycle("import", source, "--store", store).stdout

    (tmp_path / "bench").mkdir()
    benches.build(tmp_path / "bench")
    corpus = benches.Bench(tmp_path / "bench").artifact("corpus")
    config = {
        "model": "initial",
        "batch": {"sequence_length": 8, "global_size": 2},
        "steps": 2,
        "optimizer": {"learning_rate": 1e-9},
        "schedule": {"warmup_steps": 1},
        "device": "CPU",
    }
    stage("pretrain", "stages.pretrain", config, store, corpus=corpus, initial=taken)
    trained = only(store, "checkpoint", {taken.name})
    assert read_architecture(trained) == original.architecture
    assert (trained / "chat_template.jinja").is_file()
    for name in original.weights:  # at a rate of nothing it ends where it began
        drift = np.abs(read_model(trained).weights[name] - original.weights[name])
        assert drift.max() < 1e-7

    stage("convert", "stages.convert", {"dtype": "bf16"}, store, checkpoint=taken)
    given = read_model(only(store, "hf-model"))
    assert given.dtype == "bf16"
    assert given.architecture == original.architecture
    assert json.loads((given.directory / "generation_config.json").read_text()) == {
        "do_sample": True,
        "temperature": 0.6,
        "eos_token_id": [0, 3],
    }
    for name in original.weights:
        wanted = original.weights[name].astype(ml_dtypes.bfloat16)
        assert given.weights.raw(name).tobytes() == wanted.tobytes()


def test_an_adapter_from_elsewhere_is_bound_to_the_base_that_is_named(tmp_path: Path) -> None:
    benches.build(tmp_path)
    bench = benches.Bench(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (elsewhere / name).write_bytes((bench.artifact("adapter") / name).read_bytes())
    ours = {bench.artifact("adapter").name}
    ran = mindcycle("import", elsewhere, "--base", bench.artifact("other"), "--store", bench.store)
    assert ran.returncode == 0, ran.stderr
    taken = only(bench.store, "adapter", ours)
    read_adapter(taken).check_base(read_manifest(bench.artifact("other")))
    assert read_manifest(taken).headline["base"] == "named by the user"

    arguments = ("import", bench.artifact("adapter"), "--base", bench.artifact("other"))
    ran = mindcycle(*arguments, "--force", "--store", bench.store)
    assert ran.returncode == 0, ran.stderr
    forced = read_manifest(only(bench.store, "adapter", ours | {taken.name}))
    assert forced.config["force"] is True
    assert forced.headline["base"] == "forced"
