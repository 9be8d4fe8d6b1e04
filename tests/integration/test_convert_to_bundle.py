"""convert, merge and export as processes: checkpoint to bundle, skipping, and exit codes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.adapter import Adapter, Base, adapter_shapes, write_adapter
from artifacts.lineage import verify_chain
from artifacts.manifest import read_manifest
from artifacts.onnx_bundle import OnnxModel
from stages.convert.reference import reference_logits
from tests.tiny_models import as_artifact, random_adapter, random_weights, tiny, write_hf

ROOT = Path(__file__).parent.parent.parent
TARGETS = ("q_proj", "up_proj")


def run_stage(
    store: Path, stage: str, config: dict[str, Any], inputs: dict[str, Path]
) -> tuple[int, str, Path | None]:
    """Exit code, all output, and the artifact's directory if one was written or found."""
    package = {"prove": "export"}.get(stage, stage)
    request = store / f"{stage}.json"
    content = {
        "stage": stage,
        "config": config,
        "inputs": {role: str(path) for role, path in inputs.items()},
        "store": str(store),
    }
    request.write_text(json.dumps(content))
    done = subprocess.run(
        [sys.executable, "-m", f"stages.{package}", str(request)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1:] or [""]
    made = Path(last[0].split(" ")[-1]) if done.returncode == 0 else None
    return done.returncode, said, made


def make_adapter(store: Path, base: Path) -> tuple[Adapter, Path]:
    manifest = read_manifest(base)
    rng = np.random.default_rng(5)
    tensors = {
        module: tuple((0.1 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes)
        for module, shapes in adapter_shapes(tiny("qwen3"), TARGETS, 4).items()
    }
    adapter = Adapter(4, 8.0, TARGETS, tensors, Base(manifest.digest, manifest.identity))
    return adapter, as_artifact(store, "adapter", lambda d: write_adapter(d, adapter))


def test_from_checkpoint_to_bundle(tmp_path: Path) -> None:
    a = tiny("qwen3")
    checkpoint = as_artifact(tmp_path, "checkpoint", lambda directory: write_hf(directory, a))
    code, said, base = run_stage(
        tmp_path, "convert", {"max_shard_size": "20KB"}, {"checkpoint": checkpoint}
    )
    assert (code, base is not None) == (0, True), said
    assert base is not None
    adapter, adapter_path = make_adapter(tmp_path, base)
    code, said, merged = run_stage(tmp_path, "merge", {}, {"model": base, "adapter": adapter_path})
    assert code == 0, said
    assert merged is not None
    code, said, bundle = run_stage(tmp_path, "export", {"licence": "Apache-2.0"}, {"model": merged})
    assert code == 0, said
    assert bundle is not None
    of_bundle = {"bundle": bundle, "model": merged}
    code, said, proof = run_stage(tmp_path, "prove", {"longest": 20}, of_bundle)
    assert code == 0, said
    assert proof is not None

    # What comes out at the end is the base plus the adapter, by an independent route.
    weights = random_weights(a)
    for module in adapter.tensors:
        weights[module + ".weight"] = weights[module + ".weight"] + adapter.delta(module)
    ids = np.random.default_rng(1).integers(0, a.vocab_size, (2, 30))
    wanted = reference_logits(a, weights, ids)
    assert np.abs(OnnxModel(bundle).logits(ids) - wanted).max() < 1e-5
    agreement = json.loads((proof / "agreement.json").read_text())
    assert (agreement["passed"], agreement["precision"]) == (True, "fp32")
    assert agreement["longest"] == 20
    assert 0 < agreement["max_scaled"] <= 1e-5
    assert (proof / "agreement.png").read_bytes()[:4] == b"\x89PNG"
    assert read_manifest(bundle).inputs["model"].digest == read_manifest(merged).digest
    assert read_manifest(proof).inputs["bundle"].digest == read_manifest(bundle).digest
    assert verify_chain(proof).problems == []

    code, said, again = run_stage(tmp_path, "export", {"licence": "Apache-2.0"}, {"model": merged})
    assert code == 0
    assert "done already" in said
    assert again == bundle

    # The merged model's shards are checked before anything is read from them.
    code, said, _ = run_stage(tmp_path, "merge", {}, {"model": merged, "adapter": adapter_path})
    assert code == 2
    assert "is merged into this model already" in said
    assert "Traceback" not in said

    shard = next(base.glob("model-00002-of-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-4])
    code, said, _ = run_stage(tmp_path, "export", {}, {"model": base})
    assert code == 2
    assert shard.name in said
    assert "Traceback" not in said


def test_a_graph_that_is_not_proved_has_no_proof(tmp_path: Path) -> None:
    model = as_artifact(tmp_path, "hf-model", lambda directory: write_hf(directory, tiny()))
    code, output, bundle = run_stage(tmp_path, "export", {}, {"model": model})
    assert bundle is not None, output
    # No float32 engine can be this close to another: the proof must fail, and exit with 1.
    code, output, _ = run_stage(
        tmp_path, "prove", {"threshold": 1e-12, "longest": 8}, {"bundle": bundle, "model": model}
    )
    assert code == 1
    assert "the graph does not agree with MindSpore" in output
    assert "more" in output
    assert not list((tmp_path / "proof").glob("[0-9a-f]*"))


def test_a_bundle_is_proved_with_its_adapters(tmp_path: Path) -> None:
    """They are found by the bundle's manifest, and compared as they were."""
    a = tiny(layers=1)
    model = as_artifact(tmp_path, "hf-model", lambda directory: write_hf(directory, a))
    source = tmp_path / "poet"
    source.mkdir()
    write_adapter(source, random_adapter(a, 2, TARGETS, 3))
    config = {"adapters": {"poet": str(source)}, "precision": "int8"}
    code, output, bundle = run_stage(tmp_path, "export", config, {"model": model})
    assert bundle is not None, output
    inputs = {"bundle": bundle, "model": model}
    code, output, proof = run_stage(tmp_path, "prove", {"longest": 6}, inputs)
    assert proof is not None, output
    agreement = json.loads((proof / "agreement.json").read_text())
    engines = [each["engine"] for each in agreement["others"]]
    assert engines == ["reference", "onnxruntime, adapter poet"]
    assert agreement["precision"] == "int8"
    (source / "adapter_model.safetensors").write_bytes(b"another")
    code, output, _ = run_stage(tmp_path, "prove", {"longest": 5}, inputs)
    assert code == 2
    assert "is not the file that the bundle's adapter poet was made from" in output


def test_an_adapter_of_another_base_is_exported_by_force_alone(tmp_path: Path) -> None:
    a = tiny(layers=1)
    model = as_artifact(tmp_path, "hf-model", lambda directory: write_hf(directory, a))
    manifest = read_manifest(model)
    source, adapter = tmp_path / "poet", random_adapter(a, 2, TARGETS, 3)
    source.mkdir()
    config = {"adapters": {"poet": str(source)}}
    write_adapter(source, replace(adapter, base=Base("f" * 64, "e" * 64)))
    code, output, _ = run_stage(tmp_path, "export", config, {"model": model})
    assert code == 2
    assert f"belongs to the base with digest {'f' * 16}" in output
    code, output, _ = run_stage(tmp_path, "export", config | {"force_base": True}, {"model": model})
    assert code == 0, output
    write_adapter(source, replace(adapter, base=Base(manifest.digest, manifest.identity)))
    code, output, _ = run_stage(tmp_path, "export", config, {"model": model})
    assert code == 0, output
