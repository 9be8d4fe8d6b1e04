"""Merging: W + s * B @ A in float32, once, into the right base, and never silently nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from artifacts.adapter import Adapter, Base, adapter_shapes, write_adapter
from artifacts.architecture import Architecture
from artifacts.errors import BadInput, StageFailed
from artifacts.fields import DType
from artifacts.hf_model import read_model
from artifacts.lora_spec import LoraSpec
from artifacts.manifest import Manifest, read_manifest
from artifacts.store import artifact_path
from artifacts.tokenizer_files import write_object
from stages.engine import runtime
from stages.evaluate.text import TextCodec
from stages.finetune.templates import CHAT_JINJA, Template, describe
from stages.merge.config import SPEC
from stages.merge.merging import Merger
from stages.merge.record import RECORD
from stages.merge.run import run
from stages.process import execute
from stages.spec import Request
from tests.tiny_models import as_artifact, tiny, write_hf

TARGETS = ("q_proj", "v_proj", "down_proj")


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    runtime.start("CPU")


def make_adapter(a: Architecture, base: Path, size: float = 0.3, seed: int = 0) -> Adapter:
    rng = np.random.default_rng(seed)
    manifest = read_manifest(base)
    tensors = {
        module: (
            (size * rng.standard_normal(shape_a)).astype(np.float32),
            rng.standard_normal(shape_b).astype(np.float32),
        )
        for module, (shape_a, shape_b) in adapter_shapes(a, TARGETS, 2).items()
    }
    return Adapter(2, 3.0, TARGETS, tensors, Base(manifest.digest, manifest.identity))


def make_base(store: Path, a: Architecture, dtype: DType = "fp32") -> Path:
    return as_artifact(store, "hf-model", lambda d: write_hf(d, a, dtype=dtype))


def adapter_artifact(store: Path, adapter: Adapter, identity: str = "2" * 64) -> Path:
    return as_artifact(store, "adapter", lambda d: write_adapter(d, adapter), identity=identity)


def merge(
    store: Path, base: Path, adapter: Path, *more: Path, **config: Any
) -> tuple[Manifest, Path]:
    inputs = {"model": str(base), "adapter": str(adapter)}
    inputs |= {f"adapter_{i}": str(path) for i, path in enumerate(more, 2)}
    request = Request("merge", config, inputs, str(store))
    manifest = execute(SPEC, run, request)
    return manifest, artifact_path(store, "hf-model", manifest.identity)


def published(store: Path) -> int:
    return len(list((store / "hf-model").glob("[0-9a-f]*")))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_weights_are_base_plus_scaled_product(tmp_path: Path, family) -> None:
    a = tiny(family, layers=1, tied_head=family != "llama")
    base = make_base(tmp_path, a)
    adapter = make_adapter(a, base)
    manifest, directory = merge(tmp_path, base, adapter_artifact(tmp_path, adapter))
    before, after = read_model(base), read_model(directory)
    for name in before.weights:
        module = name.removesuffix(".weight")
        if module in adapter.tensors:
            low, high = adapter.tensors[module]
            wanted = before.weights[name].astype(np.float64) + 1.5 * (
                high.astype(np.float64) @ low.astype(np.float64)
            )
            assert np.abs(after.weights[name] - wanted).max() < 1e-6
            assert np.abs(after.weights[name] - before.weights[name]).max() > 0.1
        else:
            assert after.weights.raw(name).tobytes() == before.weights.raw(name).tobytes()
    record = json.loads((directory / RECORD).read_text())
    (entry,) = record["merges"]
    assert entry["base_digest"] == read_manifest(base).digest
    assert entry["scaling"] == 1.5
    assert entry["modules"] == len(TARGETS) * a.layers
    assert entry["max_abs_change"] == pytest.approx(manifest.headline["max_abs_change"])
    assert record["proof"]["scaled"] <= 1e-5
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (directory / name).read_bytes() == (base / name).read_bytes()


def test_the_sum_is_taken_in_float32_and_cast_last(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a, "bf16")
    adapter = make_adapter(a, base, size=2e-3)
    _, directory = merge(tmp_path, base, adapter_artifact(tmp_path, adapter))
    before, after = read_model(base), read_model(directory)
    assert after.dtype == "bf16"
    for module in adapter.tensors:
        name = module + ".weight"
        wanted = (before.weights[name] + adapter.delta(module)).astype(ml_dtypes.bfloat16)
        assert after.weights.raw(name).tobytes() == wanted.tobytes()
    (entry,) = json.loads((directory / RECORD).read_text())["merges"]
    assert 0.05 < entry["changed_share"] < 0.95  # small changes do vanish in bf16, and it says so


def test_an_adapter_too_small_for_the_bases_type_is_refused(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a, "bf16")
    adapter = adapter_artifact(tmp_path, make_adapter(a, base, size=1e-9))
    with pytest.raises(BadInput, match=r"changes no weight of the base as it is stored \(bf16\)"):
        merge(tmp_path, base, adapter)
    assert published(tmp_path) == 1


def test_an_adapter_that_has_not_learned_is_refused(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    fresh = make_adapter(a, base)
    tensors = {module: (low, 0 * high) for module, (low, high) in fresh.tensors.items()}
    zero = Adapter(fresh.rank, fresh.alpha, TARGETS, tensors, fresh.base)
    with pytest.raises(BadInput, match="changes nothing"):
        merge(tmp_path, base, adapter_artifact(tmp_path, zero))


def test_the_same_adapter_does_not_go_in_twice(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    adapter = adapter_artifact(tmp_path, make_adapter(a, base))
    _, once = merge(tmp_path, base, adapter)
    with pytest.raises(BadInput, match="is merged into this model already"):
        merge(tmp_path, once, adapter)
    assert published(tmp_path) == 2


def test_the_same_tensors_do_not_go_in_twice_under_another_base_s_name(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    _, once = merge(tmp_path, base, adapter_artifact(tmp_path, make_adapter(a, base)))
    bound_anew = adapter_artifact(tmp_path, make_adapter(a, once), identity="3" * 64)
    with pytest.raises(BadInput, match="is merged into this model already"):
        merge(tmp_path, once, bound_anew)


def test_another_adapter_goes_on_top_and_both_are_on_record(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    first = adapter_artifact(tmp_path, make_adapter(a, base))
    _, once = merge(tmp_path, base, first)
    second = adapter_artifact(tmp_path, make_adapter(a, once, seed=1), identity="3" * 64)
    _, twice = merge(tmp_path, once, second)
    merges = json.loads((twice / RECORD).read_text())["merges"]
    assert [each["adapter_digest"] for each in merges] == [
        read_manifest(each).digest for each in (first, second)
    ]
    with pytest.raises(BadInput, match="already"):
        merge(tmp_path, twice, first)


def test_another_base_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    weights = write_hf(tmp_path / "scratch", a)
    weights["model.norm.weight"][0] += 1
    other = as_artifact(tmp_path, "hf-model", lambda d: write_hf(d, a, weights), identity="4" * 64)
    adapter = adapter_artifact(tmp_path, make_adapter(a, base))
    with pytest.raises(BadInput, match="belongs to the base with digest"):
        merge(tmp_path, other, adapter)


def test_a_weighted_sum_of_adapters_that_stand_on_different_linears(tmp_path: Path) -> None:
    a = tiny(layers=2)
    base = make_base(tmp_path, a)
    manifest = read_manifest(base)
    spec = LoraSpec(3, 2.0, r".*layers\.1\..*\.(q|up)_proj", rslora=True)
    rng = np.random.default_rng(5)
    tensors = {
        module: tuple((0.2 * rng.standard_normal(each)).astype(np.float32) for each in shapes)
        for module, shapes in spec.shapes(a).items()
    }
    belongs = Base(manifest.digest, manifest.identity)
    adapters = [make_adapter(a, base), Adapter(**vars(spec), tensors=tensors, base=belongs)]
    paths = [adapter_artifact(tmp_path, each, f"{i}" * 64) for i, each in enumerate(adapters, 2)]
    manifest, directory = merge(tmp_path, base, *paths, weights=[0.25, -2.0])
    assert manifest.headline["adapters"] == 2
    assert manifest.headline["max_error"] <= 1e-5
    before, after = read_model(base).weights, read_model(directory).weights
    shared = "model.layers.1.self_attn.q_proj"
    assert all(shared in each.tensors for each in adapters)
    for name in before:
        wanted = before[name].astype(np.float64)
        for adapter, weight in zip(adapters, (0.25, -2.0), strict=True):
            if (module := name.removesuffix(".weight")) in adapter.tensors:
                wanted = wanted + weight * adapter.delta(module)
        assert np.abs(after[name] - wanted).max() < 2e-6
    merges = json.loads((directory / RECORD).read_text())["merges"]
    assert [each["weight"] for each in merges] == [0.25, -2.0]
    for path in paths:
        with pytest.raises(BadInput, match="is merged into this model already"):
            merge(tmp_path, directory, path)


def tuned_under(template: Template | None, adapter: Adapter) -> Callable[[Path], None]:
    """Fills an adapter's directory; None leaves it without `template.json`, as peft does."""

    def fill(directory: Path) -> None:
        write_adapter(directory, adapter)
        if template is not None:
            write_object(directory / "template.json", describe(template, "<|endoftext|>"))

    return fill


@pytest.mark.parametrize(
    ("templates", "wanted"),
    [
        (["chatml"], CHAT_JINJA),
        (["question"], "{{ base }}"),
        ([None], "{{ base }}"),
        (["chatml", "chatml"], CHAT_JINJA),
        (["chatml", None], "{{ base }}"),
    ],
)
def test_what_was_tuned_on_conversations_has_their_template(
    tmp_path: Path,
    templates: list[Template | None],
    wanted: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a = tiny(layers=1)

    def with_a_template(directory: Path) -> None:
        write_hf(directory, a)
        config = json.loads((directory / "tokenizer_config.json").read_text())
        config["chat_template"] = "{{ base }}"
        (directory / "tokenizer_config.json").write_text(json.dumps(config))

    base = as_artifact(tmp_path, "hf-model", with_a_template)
    adapters = [
        as_artifact(
            tmp_path,
            "adapter",
            tuned_under(template, make_adapter(a, base, seed=i)),
            identity=f"{i}" * 64,
        )
        for i, template in enumerate(templates, 2)
    ]
    _, directory = merge(tmp_path, base, *adapters)
    assert TextCodec(directory).chat_template == wanted
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert ("chat_template" in config) == (wanted == "{{ base }}")
    said = "merge: the adapters' chat templates differ; the base's stays"
    assert (said in capsys.readouterr().out) == (None in templates[1:])


@pytest.mark.parametrize(
    ("more", "config", "says"),
    [
        (False, {"weights": [1.0, 1.0]}, r"merge\.weights: has 2 numbers; 1 adapters are given"),
        (False, {"weights": [0.0]}, r"merge\.weights: must be finite numbers other than 0"),
        (True, {}, "one adapter is given twice"),
    ],
)
def test_wrong_weights(tmp_path: Path, more: bool, config: dict[str, Any], says: str) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    adapter = adapter_artifact(tmp_path, make_adapter(a, base))
    with pytest.raises(BadInput, match=says):
        merge(tmp_path, base, adapter, *([adapter] if more else []), **config)


def test_another_base_can_be_forced_and_that_stays_on_record(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    foreign = replace(make_adapter(a, base), base=Base("f" * 64, "e" * 64))
    adapter = adapter_artifact(tmp_path, foreign)
    manifest, directory = merge(tmp_path, base, adapter, force_base=True)
    assert manifest.headline["forced"] is True
    assert manifest.config["force_base"] is True
    (entry,) = json.loads((directory / RECORD).read_text())["merges"]
    assert entry["forced"] is True
    assert entry["base_digest"] == read_manifest(base).digest


def test_a_missing_alpha_and_unmatched_targets_are_refused(tmp_path: Path) -> None:
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    adapter = make_adapter(a, base)

    def without_alpha(directory: Path) -> None:
        write_adapter(directory, adapter)
        config = json.loads((directory / "adapter_config.json").read_text())
        del config["lora_alpha"]
        (directory / "adapter_config.json").write_text(json.dumps(config))

    broken = as_artifact(tmp_path, "adapter", without_alpha, identity="5" * 64)
    with pytest.raises(BadInput, match="lora_alpha is missing"):
        merge(tmp_path, base, broken)

    deeper = {
        module.replace("layers.0.", "layers.9."): pair for module, pair in adapter.tensors.items()
    }
    strange = Adapter(2, 3.0, TARGETS, deeper, adapter.base)
    with pytest.raises(BadInput, match=r"the base has no module model.layers.9"):
        merge(tmp_path, base, adapter_artifact(tmp_path, strange, "6" * 64))


def test_a_wrong_merge_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic: the factor alpha / rank is forgotten."""
    a = tiny(layers=1)
    base = make_base(tmp_path, a)
    adapter = adapter_artifact(tmp_path, make_adapter(a, base))
    right: Any = Merger.__call__

    def unscaled(self: Merger, name: str) -> np.ndarray:
        before, after = self._base.weights[name], right(self, name)
        return before + (after - before) / np.float32(1.5)

    monkeypatch.setattr(Merger, "__call__", unscaled)
    with pytest.raises(StageFailed, match="away from those of base and adapter apart"):
        merge(tmp_path, base, adapter)
    assert published(tmp_path) == 1
