"""convert, merge and export as processes: checkpoint to bundle, skipping, and exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.adapter import Adapter, Base, adapter_shapes, write_adapter
from artifacts.lineage import verify_chain
from artifacts.manifest import read_manifest
from artifacts.onnx_bundle import OnnxModel
from stages.convert.reference import reference_logits
from tests.tiny_models import as_artifact, random_weights, tiny, write_hf

ROOT = Path(__file__).parent.parent.parent
TARGETS = ("q_proj", "up_proj")


def run_stage(
    store: Path, stage: str, config: dict[str, Any], inputs: dict[str, Path]
) -> tuple[int, str, Path | None]:
    """Exit code, all output, and the artifact's directory if one was written or found."""
    request = store / f"{stage}.json"
    content = {
        "stage": stage,
        "config": config,
        "inputs": {role: str(path) for role, path in inputs.items()},
        "store": str(store),
    }
    request.write_text(json.dumps(content))
    done = subprocess.run(
        [sys.executable, "-m", f"stages.{stage}", str(request)],
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
    code, said, bundle = run_stage(
        tmp_path, "export", {"longest": 20, "licence": "Apache-2.0"}, {"model": merged}
    )
    assert code == 0, said
    assert bundle is not None

    # What comes out at the end is the base plus the adapter, by an independent route.
    weights = random_weights(a)
    for module in adapter.tensors:
        weights[module + ".weight"] = weights[module + ".weight"] + adapter.delta(module)
    ids = np.random.default_rng(1).integers(0, a.vocab_size, (2, 30))
    wanted = reference_logits(a, weights, ids)
    assert np.abs(OnnxModel(bundle).logits(ids) - wanted).max() < 1e-5
    agreement = json.loads((bundle / "agreement.json").read_text())
    assert agreement["passed"] is True
    assert agreement["longest"] == 20
    assert 0 < agreement["max_scaled"] <= 1e-5
    assert (bundle / "agreement.png").read_bytes()[:4] == b"\x89PNG"
    assert read_manifest(bundle).inputs["model"].digest == read_manifest(merged).digest
    assert verify_chain(bundle).problems == []

    code, said, again = run_stage(
        tmp_path, "export", {"longest": 20, "licence": "Apache-2.0"}, {"model": merged}
    )
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
    code, said, _ = run_stage(tmp_path, "export", {"longest": 4}, {"model": base})
    assert code == 2
    assert shard.name in said
    assert "Traceback" not in said


def test_wrong_export_configs_exit_2(tmp_path: Path) -> None:
    model = as_artifact(tmp_path, "hf-model", lambda directory: write_hf(directory, tiny()))
    wrong = {"longest": 1, "threshold": 0, "opset": 18}
    code, output, _ = run_stage(tmp_path, "export", wrong, {"model": model})
    assert code == 2
    assert "export.longest: is 1; " in output
    assert "export.threshold: is 0; " in output
    assert "export.opset: is no known key" in output
    code, output, _ = run_stage(tmp_path, "export", {"longest": 65}, {"model": model})
    assert code == 2
    assert "export.longest: is 65; the model's longest is 64" in output
    assert "Traceback" not in output


def test_a_graph_that_is_not_proved_is_not_published(tmp_path: Path) -> None:
    model = as_artifact(tmp_path, "hf-model", lambda directory: write_hf(directory, tiny()))
    # No float32 engine can be this close to another: the proof must fail, and exit with 1.
    code, output, _ = run_stage(
        tmp_path, "export", {"threshold": 1e-12, "longest": 8}, {"model": model}
    )
    assert code == 1
    assert "the graph does not agree with MindSpore" in output
    assert "more" in output
    assert not list((tmp_path / "onnx-bundle").glob("[0-9a-f]*"))
