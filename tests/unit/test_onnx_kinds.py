"""Every set of operators and every precision: proved where right, refused where wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper
from pydantic import ValidationError

from artifacts.adapter import Adapter
from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.lora_spec import LoraSpec
from artifacts.onnx_bundle import DATA, GENAI_CONFIG, GRAPH, OnnxModel, adapter_file
from artifacts.rope import Llama3Scaling, YarnScaling
from stages.export.adapters import write_onnx_adapter
from stages.export.agreement import Agreement, EngineResult, run_cases
from stages.export.cases import sweep
from stages.export.checks import greedy_check, pieces_check, reference_text
from stages.export.config import ExportConfig
from stages.export.engines import Lane, WithAdapter, lane
from stages.export.kinds import MAX_ERROR, MAX_MEAN_KL
from stages.export.likeness import likeness
from stages.export.linears import _nibbles
from stages.export.proof_config import ProofConfig
from stages.export.structure import structure_problems
from tests.bundles import change_graph, exact, write_tiny_bundle
from tests.tiny_models import merged, random_adapter, random_weights, tiny

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 16},
    "mistral-window": {"family": "mistral", "head_dim": 16, "sliding_window": 4, "kv_heads": 1},
    "qwen2-yarn": {
        "family": "qwen2",
        "head_dim": 16,
        "rope_scaling": YarnScaling(factor=4, original_max_position_embeddings=16),
    },
    "qwen3-untied": {"family": "qwen3", "tied_head": False},
    "llama3-biases": {
        "head_dim": 16,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": Llama3Scaling(
            factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=32
        ),
    },
}
KINDS = [
    ("opset23", "fp32", ["onnxruntime", "reference"]),
    ("microsoft", "fp32", ["onnxruntime"]),
    ("plain", "fp16", ["onnxruntime", "reference"]),
    ("plain", "int8", ["onnxruntime", "reference"]),
    ("opset23", "int8", ["onnxruntime"]),
    ("plain", "int4", ["onnxruntime"]),
    ("microsoft", "int4", ["onnxruntime"]),
]
FEW = 9
EVERY = [
    (*kind, shape)
    for kind in KINDS
    for shape in SHAPES
    # Rounding knows no shapes; microsoft's operators take q, k and v as one where they are int4.
    if "fp32" in kind or "microsoft" in kind or shape in ("qwen2-yarn", "qwen3-untied")
]


def prove(
    bundle: Path, a: Architecture, weights: dict[str, np.ndarray], engines: list[str], **kind: Any
) -> Agreement:
    """As the stage, with the float64 reference."""
    operators, precision = kind.get("operators", "plain"), kind.get("precision", "fp32")
    model, reference = OnnxModel(bundle, threads=1), exact(a, weights)
    cases = sweep(a.vocab_size, FEW, seed=0)
    lanes = [lane(name, operators, model) for name in engines]  # type: ignore[arg-type]
    allowed = MAX_ERROR[precision]
    text = reference_text(reference, a.vocab_size, 16, seed=0)
    results = run_cases(lanes, reference, cases, allowed)
    own, *others = [
        EngineResult(
            name,
            "",
            found,
            [
                pieces_check(each.engine, a.vocab_size, FEW, 0, allowed),
                greedy_check(each.engine, text, allowed),
            ],
        )
        for name, each, found in zip(engines, lanes, results, strict=True)
    ]
    graph = onnx.load(str(bundle / GRAPH), load_external_data=False)
    structure = structure_problems(graph, a, kind.get("lora", ()))
    return Agreement(
        allowed,
        FEW,
        structure,
        own.cases,
        own.checks,
        others,
        max_mean_kl=MAX_MEAN_KL.get(precision),
    )


@pytest.mark.parametrize(("operators", "precision", "engines", "shape"), EVERY)
def test_every_kind_is_proved(
    tmp_path: Path, operators: str, precision: str, engines: list[str], shape: str
) -> None:
    a = tiny(**SHAPES[shape])
    kind = {"operators": operators, "precision": precision}
    weights = write_tiny_bundle(tmp_path, a, **kind)
    agreement = prove(tmp_path / "bundle", a, weights, engines, **kind)
    assert agreement.problems == []
    kinds = {each.kind for each in agreement.cases}
    assert {"whole", "left pad", "holes", "masked row", "past", "spread positions"} <= kinds
    if precision == "fp32":
        assert agreement.max_scaled is not None
        assert agreement.max_scaled < 5e-6
    onnx.checker.check_model(str(tmp_path / "bundle" / GRAPH))


@pytest.mark.parametrize(
    ("operators", "precision"),
    [("plain", "fp16"), ("plain", "int8"), ("plain", "int4"), ("microsoft", "int4")],
)
def test_rounding_is_all_that_is_lost(tmp_path: Path, operators: str, precision: str) -> None:
    """With the rounded weights as reference, what is left is the rounding of the inputs."""
    a = tiny(tied_head=False, head_dim=16)
    weights = random_weights(a)
    rounded = {name: _rounded(w, precision) if w.ndim == 2 else w for name, w in weights.items()}
    write_tiny_bundle(tmp_path, a, weights, precision=precision, operators=operators)
    model = OnnxModel(tmp_path / "bundle", threads=1)
    ids = np.random.default_rng(0).integers(0, a.vocab_size, (3, 12))
    full, positions = np.ones(ids.shape, bool), np.tile(np.arange(12), (3, 1))
    found = model.logits(ids)
    left = np.abs(found - exact(a, rounded)(ids, full, positions)).mean()
    lost = np.abs(found - exact(a, weights)(ids, full, positions)).mean()
    assert left < {"fp16": 1e-6, "int8": 0.02, "int4": 0.02}[precision]
    assert left < {"fp16": 0.01, "int8": 0.9, "int4": 0.2}[precision] * lost


@pytest.mark.parametrize("tied", [True, False])
def test_larger_blocks_round_more_and_take_less(tmp_path: Path, tied: bool) -> None:
    a = tiny(tied_head=tied, hidden_size=128, intermediate_size=256, head_dim=32)
    weights = random_weights(a)
    ids = np.random.default_rng(0).integers(0, a.vocab_size, (3, 12))
    full, positions = np.ones(ids.shape, bool), np.tile(np.arange(12), (3, 1))
    lost, size = [], []
    for block in (32, 64, 128):
        place = tmp_path / str(block)
        place.mkdir()
        write_tiny_bundle(place, a, weights, precision="int4", int4_block=block)
        rounded = {n: _rounded(w, "int4", block) if w.ndim == 2 else w for n, w in weights.items()}
        found = OnnxModel(place / "bundle", threads=1).logits(ids)
        assert np.abs(found - exact(a, rounded)(ids, full, positions)).mean() < 0.02
        lost.append(np.abs(found - exact(a, weights)(ids, full, positions)).mean())
        size.append((place / "bundle" / DATA).stat().st_size)
    assert lost[0] < lost[1] < lost[2] < 1.6 * lost[0]
    assert size[0] > size[1] > size[2]


def _rounded(weight: np.ndarray, precision: str, block: int = 32) -> np.ndarray:
    if precision == "fp16":
        return weight.astype(np.float16).astype(np.float32)
    if precision == "int8":
        scale = np.abs(weight).max(axis=1, keepdims=True) / 127
        return np.rint(weight / scale) * scale
    bytes_NBH, scale = _nibbles(weight, block)
    steps = np.stack([bytes_NBH & 15, bytes_NBH >> 4], axis=-1).reshape(*scale.shape, -1)
    values = (steps.astype(np.float32) - 8) * scale[..., None]
    return values.reshape(len(weight), -1)[:, : weight.shape[1]]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_an_answer_does_not_depend_on_its_neighbours(tmp_path: Path, precision: str) -> None:
    """One row has huge activations; a scale shared by the batch would ruin the others."""
    a = tiny(tied_head=False)
    weights = random_weights(a)
    weights["model.embed_tokens.weight"][7] *= 1000
    write_tiny_bundle(tmp_path, a, weights, precision=precision)
    model = OnnxModel(tmp_path / "bundle", threads=1)
    ids = np.random.default_rng(0).integers(10, a.vocab_size, (2, 9))
    alone = model.logits(ids[:1])
    ids[1] = 7
    assert np.abs(model.logits(ids)[:1] - alone).max() < 1e-5


@pytest.mark.parametrize("tied", [True, False])
def test_small_files_and_a_shared_embedding(tmp_path: Path, tied: bool) -> None:
    a = tiny(tied_head=tied, vocab_size=2000, layers=1)
    sizes = {}
    for precision in ("fp32", "fp16", "int8", "int4"):
        write_tiny_bundle(tmp_path / precision, a, precision=precision)
        sizes[precision] = (tmp_path / precision / "bundle" / DATA).stat().st_size
    embedding = 2000 * 32 * (1 if tied else 2)
    pages = 4096 * 24
    assert 4 * embedding < sizes["fp32"] < 4 * embedding + 2 * pages
    assert sizes["fp16"] < 2 * embedding + pages
    assert sizes["int8"] < 1.2 * embedding + pages
    assert sizes["int4"] < 0.7 * embedding + pages


def test_signed_weights_are_refused(tmp_path: Path) -> None:
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a, precision="int8")
    bundle = tmp_path / "bundle"
    data = bytearray((bundle / DATA).read_bytes())

    def sign(graph: onnx.GraphProto) -> None:
        """Bytes less 128, as a quantiser writes them that does not know the processor."""
        for tensor in graph.initializer:
            if tensor.data_type != TensorProto.UINT8 or len(tensor.dims) != 2:
                continue
            tensor.data_type = TensorProto.INT8
            if not tensor.external_data:
                tensor.raw_data = bytes(byte ^ 128 for byte in tensor.raw_data)
            else:
                entry = {each.key: int(each.value) for each in tensor.external_data[1:]}
                part = slice(entry["offset"], entry["offset"] + entry["length"])
                data[part] = bytes(byte ^ 128 for byte in data[part])
        graph.initializer.append(numpy_helper.from_array(np.int8(0), "zero"))
        for node in graph.node:
            if node.op_type == "MatMulInteger":
                node.input[3] = "zero"

    change_graph(bundle, sign)
    (bundle / DATA).write_bytes(data)
    problems = prove(bundle, a, weights, ["onnxruntime"], precision="int8").problems
    assert any("are signed bytes; unsigned ones would be right" in each for each in problems)


def test_bad_rounding_is_refused(tmp_path: Path) -> None:
    """Scales of the wrong axis: single logits need not be far off, the distributions are."""
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a, precision="int8")

    def reverse(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            if node.op_type == "Mul" and node.input[1].endswith("gate_proj.weight.scale"):
                node.input[1] = node.input[1].replace("gate", "up")

    change_graph(tmp_path / "bundle", reverse)
    agreement = prove(tmp_path / "bundle", a, weights, ["onnxruntime"], precision="int8")
    assert any("mean divergence is" in problem for problem in agreement.problems)


def test_what_a_model_does_not_allow_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="head_dim is 8, which is no multiple of 16"):
        write_tiny_bundle(tmp_path / "a", tiny(), operators="microsoft")
    with pytest.raises(BadInput, match="hidden_size is 48, which is no multiple of int4_block, 32"):
        write_tiny_bundle(tmp_path / "b", tiny(hidden_size=48), precision="int4")
    weights = random_weights(tiny())
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = 1e5
    with pytest.raises(BadInput, match=r"fp16, which ends at 65504; .*up_proj"):
        write_tiny_bundle(tmp_path / "c", tiny(), weights, precision="fp16")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"precision": "int3"}, "fp32"),
        ({"operators": "ort"}, "plain"),
        ({"adapters": {"../x": "y"}}, "pattern"),
    ],
)
def test_wrong_settings(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ExportConfig.model_validate(values)


def test_the_proofs_terms_follow_the_kind() -> None:
    config = ProofConfig()
    assert config.engines_for("plain", "fp32") == ("onnxruntime", "reference")
    assert config.engines_for("plain", "int4") == ("onnxruntime",)
    assert config.engines_for("microsoft", "fp32") == ("onnxruntime",)
    assert (config.max_error("fp32"), config.max_mean_kl("fp32")) == (1e-5, None)
    assert (config.max_error("int4"), config.max_mean_kl("int4")) == (4.0, 0.3)
    assert ProofConfig(threshold=1e-3).max_error("int4") == 1e-3
    named = ProofConfig(engines=("reference", "onnxruntime"))
    assert named.engines_for("plain", "fp32") == ("onnxruntime", "reference")
    assert named.unable("plain", "int8") is None
    assert "lacks com.microsoft's operators" in str(named.unable("plain", "int4"))
    with pytest.raises(ValidationError, match="onnxruntime must be among them"):
        ProofConfig(engines=("openvino",))
    with pytest.raises(BadInput, match=r"nowhere/adapter_config.json is missing"):
        ExportConfig.model_validate({"adapters": {"a": "nowhere"}}).source_files()


def patterned_adapter(a: Architecture, rank: int, targets: tuple[str, ...], seed: int) -> Adapter:
    """Ranks and scales that differ from place to place."""
    patterns = {"rank_pattern": {"up_proj": 3}, "alpha_pattern": {r"layers\.1\..*": 2.0}}
    spec = LoraSpec(rank, 4.0, targets, rslora=True, **patterns)
    rng = np.random.default_rng(seed)
    tensors = {
        module: tuple((0.3 * rng.standard_normal(each)).astype(np.float32) for each in shapes)
        for module, shapes in spec.shapes(a).items()
    }
    return Adapter(**vars(spec), tensors=tensors)


@pytest.mark.parametrize("operators", ["plain", "opset23", "microsoft"])
def test_adapters_apart_are_the_merged_models(tmp_path: Path, operators: str) -> None:
    a = tiny(head_dim=16)
    adapters = {
        "one": random_adapter(a, 4, ("q_proj", "v_proj"), 1),
        "two": patterned_adapter(a, 8, ("o_proj", "up_proj", "down_proj"), 2),
    }
    lora = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    weights = write_tiny_bundle(tmp_path, a, operators=operators, adapters=adapters)
    bundle = tmp_path / "bundle"
    base = prove(bundle, a, weights, ["onnxruntime"], operators=operators, lora=lora)
    assert base.problems == []
    model = OnnxModel(bundle, threads=1)
    assert model.adapters == ["one", "two"]
    cases = [case for case in sweep(a.vocab_size, FEW, 0) if len(case.ids_BT) == 1]
    for name in ("one", "two", "one"):
        lanes = [Lane(WithAdapter(model, name))]
        reference = exact(a, merged(weights, adapters[name]))
        (found,) = run_cases(lanes, reference, cases, 1e-5)
        assert [each.problem for each in found if each.problem] == []
        (other,) = run_cases(lanes, exact(a, weights), cases, 1e-5)
        assert all(each.problem for each in other)


def test_an_adapter_of_another_model_is_named(tmp_path: Path) -> None:
    a = tiny()
    write_tiny_bundle(tmp_path, a, adapters={"one": random_adapter(a, 4, ("q_proj",), 1)})
    model = OnnxModel(tmp_path / "bundle", threads=1)
    other, q, up = tiny(hidden_size=64), ("q_proj",), ("q_proj", "up_proj")
    wide, mlp = tmp_path / "wide.onnx_adapter", tmp_path / "mlp.onnx_adapter"
    write_onnx_adapter(wide, random_adapter(other, 4, q, 1), other, q)
    with pytest.raises(BadInput, match=r"q_proj.lora_A is \[64, 4\], the bundle takes \[32"):
        model.load_adapter("wide", wide)
    write_onnx_adapter(mlp, random_adapter(a, 4, ("up_proj",), 1), a, up)
    with pytest.raises(BadInput, match=r"has no place for model.layers.0.mlp.up_proj.lora_A"):
        model.load_adapter("mlp", mlp)
    write_tiny_bundle(tmp_path / "two", a, adapters={"two": random_adapter(a, 4, up, 1)})
    with pytest.raises(BadInput, match=r"has nothing for model.layers.0.mlp.up_proj.lora_A"):
        OnnxModel(tmp_path / "two" / "bundle").load_adapter(
            "one", adapter_file(tmp_path / "bundle", "one")
        )
    adapter_file(tmp_path / "bundle", "one").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"one.onnx_adapter: is no .onnx_adapter file"):
        OnnxModel(tmp_path / "bundle", threads=1)


def test_genai_is_told_of_the_shared_cache(tmp_path: Path) -> None:
    for operators, shared in (("plain", False), ("microsoft", True)):
        write_tiny_bundle(tmp_path / operators, tiny(head_dim=16), operators=operators)
        config = json.loads((tmp_path / operators / "bundle" / GENAI_CONFIG).read_text())
        assert config["search"]["past_present_share_buffer"] is shared


def test_onnxruntime_takes_the_graph_without_warnings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_tiny_bundle(tmp_path, tiny(), precision="int8")
    ort.InferenceSession(str(tmp_path / "bundle" / GRAPH), providers=["CPUExecutionProvider"])
    assert capfd.readouterr().err == ""


def test_likeness_of_known_distributions() -> None:
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    found = likeness(np.log(p), np.log(q))
    assert found is not None
    assert found.kl == pytest.approx(0.5 * np.log(2) + 0.25 * np.log(0.5))
    assert (found.top1, found.max_kl) == (0.0, found.kl)
    same = likeness(np.log(p), np.log(p) + 3)
    assert same is not None
    assert same.kl == pytest.approx(0, abs=1e-12)
    assert same.top1 == 1
    assert likeness(np.log(p), np.full((1, 3), np.nan)) is None
