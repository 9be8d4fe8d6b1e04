"""Adapters: what peft wrote is read exactly, what is wrong is named, merging is W + s * B @ A."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.adapter import (
    BASE,
    CONFIG,
    PROJECTIONS,
    TENSORS,
    Adapter,
    Base,
    adapter_shapes,
    read_adapter,
    write_adapter,
)
from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.lora_spec import LoraSpec, problem_with_pattern
from artifacts.manifest import Manifest
from artifacts.weights import SafetensorsFile, write_safetensors

TINY = Architecture(
    family="llama",
    vocab_size=32,
    hidden_size=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    intermediate_size=24,
    max_positions=64,
)


def make_adapter(targets: tuple[str, ...] = PROJECTIONS, rank: int = 3) -> Adapter:
    rng = np.random.default_rng(0)
    tensors = {
        module: (
            rng.standard_normal(a).astype(np.float32),
            rng.standard_normal(b).astype(np.float32),
        )
        for module, (a, b) in adapter_shapes(TINY, targets, rank).items()
    }
    return Adapter(rank, 6.0, targets, tensors, Base("d" * 64, "i" * 64))


def manifest_with(digest: str) -> Manifest:
    return Manifest(
        kind="hf-model",
        stage="convert",
        code_version=1,
        identity="i" * 64,
        digest=digest,
        files=[],
        inputs={},
        sources=[],
        config={},
        seeds={},
        packages={},
        host={},
        started="",
        finished="",
        headline={},
    )


def edit_config(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / CONFIG).read_text())
    for key, value in changes.items():
        if value is ...:
            del config[key]
        else:
            config[key] = value
    (directory / CONFIG).write_text(json.dumps(config))


def edit_tensors(directory: Path, change: Any) -> None:
    """Rewrite the tensors file after `change` has had its way with the dict of arrays."""
    file = SafetensorsFile(directory / TENSORS)
    arrays = {name: np.array(file.read(name)) for name in file.names()}
    change(arrays)
    entries = [(name, array.shape, array.dtype) for name, array in arrays.items()]
    write_safetensors(directory / TENSORS, entries, arrays.values(), {})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_adapter(tmp_path, make_adapter())
    return tmp_path


def test_round_trip_keeps_everything(written: Path) -> None:
    ours, back = make_adapter(), read_adapter(written)
    assert (back.rank, back.alpha, back.targets, back.base) == (3, 6.0, PROJECTIONS, ours.base)
    assert back.tensors.keys() == ours.tensors.keys()
    assert len(back.tensors) == 14
    for module, (a, b) in ours.tensors.items():
        np.testing.assert_array_equal(back.tensors[module][0], a)
        np.testing.assert_array_equal(back.tensors[module][1], b)
    back.check_fits(TINY)


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_adapter(tmp_path / name, make_adapter())
    for file in (CONFIG, TENSORS, BASE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_delta_by_hand() -> None:
    a = np.array([[1, 2, 3]], np.float32)
    b = np.array([[10], [100]], np.float32)
    adapter = Adapter(1, 0.5, ("q_proj",), {"m": (a, b)})
    np.testing.assert_array_equal(adapter.delta("m"), [[5, 10, 15], [50, 100, 150]])
    assert adapter.delta("m").dtype == np.float32


def test_half_precision_tensors_are_read_as_float32(written: Path) -> None:
    def to_half(arrays: dict[str, np.ndarray]) -> None:
        for name in arrays:
            arrays[name] = arrays[name].astype(np.float16)

    edit_tensors(written, to_half)
    for a, b in read_adapter(written).tensors.values():
        assert a.dtype == b.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora_alpha": ...}, "lora_alpha is missing"),
        ({"lora_alpha": 0}, "lora_alpha is 0"),
        ({"lora_alpha": True}, "lora_alpha is true"),
        ({"r": ...}, "r is missing"),
        ({"r": 0}, "r is 0"),
        ({"r": 2.5}, "r is 2.5"),
        ({"target_modules": ...}, "target_modules is missing"),
        ({"target_modules": []}, "target_modules is []"),
        ({"target_modules": ["lm_head"]}, "target_modules is ['lm_head']"),
        ({"target_modules": "(.|..|...)+j[^o]"}, "one that takes more than 1 s to try on a name"),
        ({"target_modules": "*q_proj"}, "this is no regular expression: nothing to repeat"),
        ({"target_modules": 7}, "target_modules is 7"),
        ({"bias": "all"}, "bias is 'all', supported is 'none'"),
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ({"use_dora": True}, "use_dora is true"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern is {'q_proj': 0}"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern is ['q_proj']"),
        ({"alpha_pattern": {"q_proj": "2"}}, "alpha_pattern is {'q_proj': '2'}"),
        ({"alpha_pattern": {"(a": 2}}, "alpha_pattern has '(a'; this is no regular expression"),
        ({"layers_to_transform": [0.5]}, "layers_to_transform is [0.5]"),
        ({"layers_pattern": "h"}, "layers_pattern is 'h', supported is null or 'layers'"),
        ({"target_modules": ".*", "layers_to_transform": 1}, "null beside a regular expression"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"a_later_feature": 1}, "a_later_feature is 1"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(
    written: Path, changes: dict[str, Any], said: str
) -> None:
    edit_config(written, **changes)
    with pytest.raises(BadInput) as caught:
        read_adapter(written)
    assert len(caught.value.problems) == 1
    assert said in str(caught.value)


def test_all_wrong_settings_are_named_together(written: Path) -> None:
    edit_config(written, lora_alpha=..., use_dora=True, bias="all")
    with pytest.raises(BadInput) as caught:
        read_adapter(written)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank_pattern": {"w_proj": 3}}, "rank_pattern w_proj has no tensors"),
        ({"alpha_pattern": {r"layers\.9\..*": 3}}, r"alpha_pattern layers\.9\..* has no tensors"),
        ({"rank_pattern": {"q_proj": 4}}, "has shape [3, 16], r is 4"),
        ({"exclude_modules": ["q_proj"]}, "stands on q_proj, no target"),
        ({"layers_to_transform": [0]}, "model.layers.1.mlp.down_proj.lora_A.weight stands on"),
        ({"target_modules": r".*\.q_proj"}, "stands on v_proj, no target"),
    ],
)
def test_settings_that_the_tensors_contradict(
    written: Path, changes: dict[str, Any], said: str
) -> None:
    """A pattern that fits nothing was meant for something."""
    edit_config(written, **changes)
    with pytest.raises(BadInput) as caught:
        read_adapter(written)
    assert said in str(caught.value)


SPECS: dict[str, dict[str, Any]] = {
    "patterns": {
        "targets": PROJECTIONS,
        "rank_pattern": {"q_proj": 5, r"layers\.1\.mlp\.up_proj": 2},
        "alpha_pattern": {r"layers\.0\..*": 3.0},
    },
    "rslora": {"targets": ("k_proj", "o_proj"), "rslora": True},
    "one expression": {"targets": r".*layers\.1\.(self_attn|mlp)\.(q|down)_proj"},
    "some layers": {"targets": ("v_proj", "mlp.up_proj"), "layers": (1,)},
    "all but some": {"targets": "all-linear", "excluded": ("o_proj",)},
}


@pytest.mark.parametrize("name", SPECS)
def test_any_selection_survives_its_files(tmp_path: Path, name: str) -> None:
    spec = LoraSpec(3, 6.0, **SPECS[name])
    rng = np.random.default_rng(0)
    tensors = {
        module: (rng.standard_normal(a).astype("f4"), rng.standard_normal(b).astype("f4"))
        for module, (a, b) in spec.shapes(TINY).items()
    }
    write_adapter(tmp_path, Adapter(**vars(spec), tensors=tensors))
    back = read_adapter(tmp_path)
    back.check_fits(TINY)
    for field in vars(spec):
        assert getattr(back, field) == getattr(spec, field)
    assert back.pairs() == {m: (spec.rank_of(m), spec.scaling_of(m)) for m in spec.shapes(TINY)}


def test_patterns_by_hand() -> None:
    spec = LoraSpec(4, 8.0, **SPECS["patterns"])
    q0, q1 = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"
    assert (spec.rank_of(q0), spec.scaling_of(q0)) == (5, 0.6)
    assert (spec.rank_of(q1), spec.scaling_of(q1)) == (5, 1.6)
    assert spec.rank_of("model.layers.1.mlp.up_proj") == 2
    assert LoraSpec(4, 8.0, ("q_proj",), rslora=True).scaling == 4.0
    assert list(LoraSpec(4, 8.0, **SPECS["some layers"]).shapes(TINY)) == [
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.mlp.up_proj",
    ]


UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mixer|mlp|ffn|dense|mixer).*?"
    r"\.(?:q_proj|v_proj|o_proj))|(?:\bmodel\.layers\.[\d]{1,}(?!.*\.experts\.\d)\..*?"
    r"(?:self_attn|attention|attn|mixer|mlp|ffn|dense|mixer).*?\.(?:(?:q_proj|v_proj|o_proj)))"
)
"""As unsloth writes it for any of its models."""


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [
        (r".*\.(q_proj|v_proj)", False),
        (r"^(?!.*visual).*(?:q_proj|k_proj)$", False),
        (r"model\.layers\.(1[0-9]|2[0-9]?)\.self_attn\.(q|v)_proj", False),
        (r"[*+(]+x", False),
        (r".*\.(q|v)_proj", False),
        (r"^(?!.*lm_head).*(q_proj|k_proj)$", False),
        (r"^(model)(?!.*(lm_head|output|emb|wte|shared)).*", False),
        (r"^(model\.language_model(?=\.).*\.(o_proj|up_proj|k_proj|q_proj))$", False),
        (UNSLOTH, False),
        ("|".join(rf"model\.layers\.{i}\.self_attn\.q_proj" for i in range(27)), False),
        (r"model\.layers\.\d{1,3}\.self_attn\.q_proj{1}", False),
        (r"(?:mlp\.|up_|proj)+", False),
        (".*" * 20 + "x", False),
        (r"(?:a?){40}a{40}", False),
        (r"(\w+\.?)+j[^o]", False),
        (r"(.|..|...)+j[^o]", True),
        ("(?x)#[", True),
        ("(" * 900, True),
        ("a" * 1001, True),
        ("", True),
    ],
)
def test_expressions_that_run_for_ever_are_refused(pattern: str, refused: bool) -> None:
    assert (problem_with_pattern(pattern) is not None) == refused


def test_an_expression_that_runs_for_ever_on_some_names_alone_is_found_there() -> None:
    pattern = r".*layers\.10\..*|(?=.*layers\.2)(.|..|...)+j[^o]"
    assert problem_with_pattern(pattern) is None
    spec = LoraSpec(1, 1.0, pattern, rank_pattern={pattern: 2})
    for asked in (spec.selects, spec.rank_of):
        with pytest.raises(BadInput, match=r"takes more than 1 s to try on model\.layers\.2000\."):
            asked("model.layers.2000.self_attn.down_proj")


Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update({"lora_A": t.pop(Q0)}), "tensor lora_A has no known name"),
        (
            lambda t: t.update({Q0.replace("lora_A.weight", "lora_Aweight"): t.pop(Q0)}),
            "lora_Aweight has no known name",
        ),
        (lambda t: t.pop(Q0), "layers.0.self_attn.q_proj has no lora_A"),
        (lambda t: t.update({Q0: t[Q0].T.copy()}), "has shape [16, 3], r is 3"),
        (lambda t: t[Q0].fill(np.nan), "values that are not finite"),
        (
            lambda t: [t.pop(name) for name in list(t) if ".up_proj." in name],
            "target up_proj has no tensors",
        ),
        (
            lambda t: t.update({Q0.replace("q_proj", "w_proj"): t.pop(Q0)}),
            "stands on w_proj, no target",
        ),
    ],
)
def test_wrong_tensors_are_named(written: Path, change: Any, said: str) -> None:
    edit_tensors(written, change)
    with pytest.raises(BadInput) as caught:
        read_adapter(written)
    assert said in str(caught.value)


def test_an_adapter_that_does_not_fit_the_base_is_refused(written: Path) -> None:
    wider = TINY.model_copy(update={"hidden_size": 20})
    with pytest.raises(BadInput, match=r"q_proj.lora_A has shape \[3, 16\].*needs \[3, 20\]"):
        read_adapter(written).check_fits(wider)
    deeper = TINY.model_copy(update={"layers": 3})
    with pytest.raises(BadInput, match=r"model.layers.2.\S+ is targeted and has no tensors"):
        read_adapter(written).check_fits(deeper)
    flatter = TINY.model_copy(update={"layers": 1})
    with pytest.raises(BadInput, match=r"the base has no module model.layers.1"):
        read_adapter(written).check_fits(flatter)


def test_another_base_is_refused(written: Path) -> None:
    read_adapter(written).check_base(manifest_with("d" * 64))
    with pytest.raises(BadInput, match=r"belongs to the base with digest dddd.* has eeee"):
        read_adapter(written).check_base(manifest_with("e" * 64))
    (written / BASE).unlink()
    with pytest.raises(BadInput, match=r"has no base\.json"):
        read_adapter(written).check_base(manifest_with("d" * 64))


def test_a_pickle_is_never_loaded(written: Path) -> None:
    (written / TENSORS).rename(written / "adapter_model.bin")
    with pytest.raises(BadInput, match="is a pickle and is never loaded"):
        read_adapter(written)
