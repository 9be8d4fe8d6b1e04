"""Our merge is peft's merge, tensor by tensor."""

from pathlib import Path

import numpy as np
import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from artifacts.adapter import PROJECTIONS, Adapter, adapter_shapes, read_adapter, write_adapter
from artifacts.hf_model import read_model, write_weights
from stages.merge.merging import Merger, Weighted
from tests.tiny_models import tiny, write_hf


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("targets", [PROJECTIONS, ("q_proj", "down_proj")])
def test_merged_weights_are_those_of_peft(tmp_path: Path, family, targets: tuple[str, ...]) -> None:
    a = tiny(family)
    write_hf(tmp_path / "base", a)
    rng = np.random.default_rng(0)
    tensors = {
        module: tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        for module, shapes in adapter_shapes(a, targets, 3).items()
    }
    (tmp_path / "adapter").mkdir()
    write_adapter(tmp_path / "adapter", Adapter(3, 4.0, targets, tensors))

    base = read_model(tmp_path / "base")
    merger = Merger(base, [Weighted(read_adapter(tmp_path / "adapter"))])
    (tmp_path / "merged").mkdir()
    write_weights(tmp_path / "merged", a, merger, "fp32", 1 << 30)
    (tmp_path / "merged" / "config.json").write_bytes(
        (tmp_path / "base" / "config.json").read_bytes()
    )
    ours = read_model(tmp_path / "merged").weights

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(model, str(tmp_path / "adapter")).merge_and_unload()
    state = theirs.state_dict()
    assert merger.changed > 0
    for name in ours:
        assert np.abs(ours[name] - state[name].numpy()).max() <= 2e-6, name
    changed = {
        name.removesuffix(".weight")
        for name in ours
        if not np.array_equal(ours[name], base.weights[name])
    }
    assert changed == set(tensors)
