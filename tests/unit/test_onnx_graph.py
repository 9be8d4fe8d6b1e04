"""The bundle: right in every case for every family, sound as ONNX, its data where it belongs."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from artifacts.errors import BadInput
from artifacts.hf_model import read_model
from artifacts.manifest import read_manifest
from artifacts.onnx_bundle import DATA, GENAI_CONFIG, GRAPH, OnnxModel
from artifacts.tokenizer_files import read_tokenizer
from stages.export import external_data
from stages.export.bundle import provenance, write_bundle
from stages.export.cases import sweep
from tests.bundles import LONGEST, exact, proof, write_tiny_bundle
from tests.tiny_models import as_artifact, tiny, write_hf

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(("kv_heads", "tied"), [(1, True), (2, False), (4, True)])
def test_every_family_is_proved(tmp_path: Path, family, kv_heads: int, tied: bool) -> None:
    a = tiny(family, kv_heads=kv_heads, tied_head=tied)
    weights = write_tiny_bundle(tmp_path, a)
    agreement = proof(tmp_path / "bundle", a, weights)
    assert agreement.problems == []
    assert agreement.max_scaled is not None
    assert 0 < agreement.max_scaled < 5e-6


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 2, "hidden_size": 3},
        {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "layers": 3},
        {"heads": 6, "kv_heads": 3, "head_dim": 10, "hidden_size": 20, "tied_head": False},
        {"attention_bias": True, "mlp_bias": True},
        {"family": "mistral", "sliding_window": 3},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": LLAMA3},
        {"family": "qwen2", "sliding_window": 5, "rope_scaling": YARN},
    ],
)
def test_odd_shapes_are_proved(tmp_path: Path, changes: dict) -> None:
    a = tiny(**changes)
    weights = write_tiny_bundle(tmp_path, a)
    assert proof(tmp_path / "bundle", a, weights).problems == []


def test_the_sweep_holds_what_it_promises() -> None:
    cases = sweep(260, LONGEST, 0)
    assert len({case.name for case in cases}) == len(cases)
    assert {case.ids_BT.shape[0] for case in cases} == {1, 2, 5}
    lengths = {case.ids_BT.shape[1] for case in cases if case.kind == "whole"}
    assert {1, 2, LONGEST} <= lengths
    assert max(case.ids_BT.shape[1] for case in cases) == LONGEST
    assert {0, 1, LONGEST - 1} <= {case.past for case in cases}
    kinds = {case.kind: case for case in cases}
    assert not kinds["left pad"].mask_BT[0, 0]
    assert kinds["left pad"].mask_BT[:, -1].all()
    assert not kinds["right pad"].mask_BT[0, -1]
    assert not kinds["masked row"].mask_BT[0].any()
    assert kinds["holes"].mask_BT[:, -1].all()
    assert not kinds["holes"].mask_BT.all(axis=1).any()
    for short in (1, 2, 3, 5):
        assert max(case.ids_BT.shape[1] for case in sweep(260, short, 0)) == short


def test_the_graph_is_what_engines_accept(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path, tiny())
    path = tmp_path / "bundle" / GRAPH
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path), load_external_data=False)
    assert model.ir_version == 8
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
    assert {each.key: each.value for each in model.metadata_props} == {"key": "value"}
    producer = next(each for each in model.graph.node if "logits" in each.output)
    assert producer.op_type == "MatMul"


def test_weights_lie_on_pages_and_small_ones_in_the_graph(tmp_path: Path) -> None:
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a)
    model = onnx.load(str(tmp_path / "bundle" / GRAPH), load_external_data=False)
    data = (tmp_path / "bundle" / DATA).read_bytes()
    seen = 0
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            assert len(tensor.raw_data) < 1024
            continue
        seen += 1
        entry = {each.key: each.value for each in tensor.external_data}
        offset, length = int(entry["offset"]), int(entry["length"])
        assert entry["location"] == DATA
        assert offset % 4096 == 0
        value = np.frombuffer(data[offset : offset + length], "<f4").reshape(tensor.dims)
        flipped = tensor.name.endswith(".T")
        wanted = weights[tensor.name.removesuffix(".T")]
        assert np.array_equal(value, wanted.T if flipped else wanted)
    assert seen == 1 + 7 * a.layers  # the embedding once, though it is also the head


def test_data_is_written_in_blocks_without_a_seam(tmp_path: Path, monkeypatch) -> None:
    a = tiny(tied_head=False)
    weights = write_tiny_bundle(tmp_path, a)
    monkeypatch.setattr(external_data, "BLOCK", 1000)
    write_tiny_bundle(tmp_path / "again", a, weights)
    one, other = (tmp_path / each / DATA for each in ("bundle", "again/bundle"))
    assert one.read_bytes() == other.read_bytes()


def test_two_exports_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_tiny_bundle(tmp_path / name, tiny())
    for path in (tmp_path / "one" / "bundle").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / "bundle" / path.name).read_bytes()


def test_half_precision_weights_and_shards_export_as_their_values(tmp_path: Path) -> None:
    a = tiny()
    weights = write_hf(tmp_path / "hf", a, dtype="bf16", max_shard_bytes=9000)
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    (tmp_path / "bundle").mkdir()
    write_bundle(
        tmp_path / "bundle", read_model(tmp_path / "hf"), read_tokenizer(tmp_path / "hf"), {}
    )
    rounded = {k: v.astype(ml_dtypes.bfloat16).astype(np.float32) for k, v in weights.items()}
    assert proof(tmp_path / "bundle", a, rounded).problems == []
    assert proof(tmp_path / "bundle", a, weights).problems != []


def test_the_bundle_may_be_moved(tmp_path: Path) -> None:
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a)
    ids = np.arange(10).reshape(2, 5)
    wanted = exact(a, weights)(ids, np.ones((2, 5), bool), np.tile(np.arange(5), (2, 1)))
    (tmp_path / "far" / "away").mkdir(parents=True)
    moved = shutil.move(tmp_path / "bundle", tmp_path / "far" / "away" / "其他 place")
    assert np.abs(OnnxModel(Path(moved)).logits(ids) - wanted).max() < 1e-5


def test_missing_and_cut_files_are_named(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path, tiny())
    bundle = tmp_path / "bundle"
    data = (bundle / DATA).read_bytes()
    (bundle / DATA).write_bytes(data[:-1])
    with pytest.raises(BadInput, match=r"model.onnx_data: is cut short, tensor .* ends at"):
        OnnxModel(bundle)
    (bundle / DATA).unlink()
    with pytest.raises(BadInput, match=r"model.onnx_data: is missing"):
        OnnxModel(bundle)
    (bundle / DATA).write_bytes(data)
    graph = (bundle / GRAPH).read_bytes()
    (bundle / GRAPH).write_bytes(graph[: len(graph) // 2])
    with pytest.raises(BadInput, match=r"model.onnx: is no ONNX graph"):
        OnnxModel(bundle)
    (bundle / GRAPH).unlink()
    with pytest.raises(BadInput, match=r"model.onnx: is missing"):
        OnnxModel(bundle)
    (bundle / GRAPH).write_bytes(graph)
    (bundle / GENAI_CONFIG).write_text("{}")
    with pytest.raises(BadInput, match=r"genai_config.json: model: is required and missing"):
        OnnxModel(bundle)


def test_data_outside_the_bundle_is_refused(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path, tiny())
    path = tmp_path / "bundle" / GRAPH
    model = onnx.load(str(path), load_external_data=False)
    tensor = next(each for each in model.graph.initializer if each.external_data)
    tensor.external_data[0].value = "../" + DATA
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BadInput, match="lies outside the bundle"):
        OnnxModel(tmp_path / "bundle")


def test_genai_config_says_what_the_model_is(tmp_path: Path) -> None:
    a = tiny("qwen3", kv_heads=1)
    write_tiny_bundle(tmp_path, a)
    model = json.loads((tmp_path / "bundle" / GENAI_CONFIG).read_text())["model"]
    decoder = model["decoder"]
    assert (model["type"], model["vocab_size"], model["context_length"]) == ("qwen3", 260, 64)
    assert (model["eos_token_id"], model["pad_token_id"], model["bos_token_id"]) == (0, 1, 0)
    assert (decoder["head_size"], decoder["num_key_value_heads"]) == (16, 1)
    loaded = OnnxModel(tmp_path / "bundle")
    assert (loaded.eos_ids, loaded.bos_id, loaded.pad_id) == ([0], None, 1)
    assert (loaded.vocab_size, loaded.max_positions) == (260, 64)


def test_the_graph_says_where_it_comes_from(tmp_path: Path) -> None:
    source = as_artifact(tmp_path, "hf-model", lambda directory: write_hf(directory, tiny()))
    manifest = read_manifest(source)
    said = provenance(manifest, read_model(source), "Apache-2.0")
    assert said["mindcycle.model.digest"] == manifest.digest
    assert said["mindcycle.model.identity"] == manifest.identity
    assert said["licence"] == "Apache-2.0"
    assert json.loads(said["mindcycle.architecture"])["family"] == "llama"
    assert "licence" not in provenance(manifest, read_model(source), None)
