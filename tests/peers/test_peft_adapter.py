"""Adapters against peft: each reads the other's files, logits agree, training takes one path."""

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

from artifacts.adapter import PROJECTIONS, Adapter, adapter_shapes, read_adapter, write_adapter
from artifacts.architecture import Architecture
from artifacts.hf_model import read_model
from artifacts.lora_spec import LoraSpec
from stages.engine.inference import InferenceModel
from stages.engine.settings import learning_rate
from stages.finetune.config import FinetuneConfig
from stages.finetune.dataset import Batches, alone, build_dataset
from stages.finetune.examples import Example, Turn
from stages.finetune.source import read_base
from stages.finetune.training import AdapterTrainer
from tests.tiny_models import tiny, write_hf

TOLERANCE = 1e-5


@pytest.fixture(params=["llama", "qwen2", "qwen3"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Architecture]:
    shape = tiny(request.param)
    write_hf(tmp_path / "base", shape)
    return tmp_path / "base", shape


def load_base(directory: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )


def logits_of(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    model.eval()
    with torch.no_grad():
        return model(torch.from_numpy(ids).long()).logits.numpy()


def some_ids(shape: Architecture) -> np.ndarray:
    return np.random.default_rng(3).integers(0, shape.vocab_size, (2, 17)).astype(np.int32)


def draw(rng: np.random.Generator, scale: float, size: tuple[int, int]) -> np.ndarray:
    return (scale * rng.standard_normal(size)).astype(np.float32)


@pytest.mark.parametrize("targets", [PROJECTIONS, ("k_proj", "down_proj")])
def test_peft_loads_ours(
    base: tuple[Path, Architecture], tmp_path: Path, targets: tuple[str, ...]
) -> None:
    directory, shape = base
    rng = np.random.default_rng(1)
    # With B as large as A, torch's own float32 is 1.2e-5 away from its float64.
    tensors = {
        module: (draw(rng, 0.3, a), draw(rng, 0.1, b))
        for module, (a, b) in adapter_shapes(shape, targets, 3).items()
    }
    ours = tmp_path / "ours"
    ours.mkdir()
    write_adapter(ours, Adapter(3, 6.0, targets, tensors))

    ids = some_ids(shape)
    plain = logits_of(load_base(directory), ids)
    theirs = logits_of(peft.PeftModel.from_pretrained(load_base(directory), ours), ids)
    assert np.abs(theirs - plain).max() > 0.1  # the adapter does something
    found = InferenceModel.load(directory, ours).logits(ids)
    assert np.abs(found - theirs).max() <= TOLERANCE

    merged = peft.PeftModel.from_pretrained(load_base(directory), ours).merge_and_unload()
    weights = dict(merged.named_parameters())
    for module in tensors:
        added = weights[module + ".weight"].detach().numpy()
        original = read_model(directory).weights[module + ".weight"]
        delta = read_adapter(ours).delta(module)
        assert np.abs(original + delta - added).max() <= 1e-6


def test_we_load_what_peft_trained(base: tuple[Path, Architecture], tmp_path: Path) -> None:
    directory, shape = base
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=4, lora_alpha=10, target_modules=list(PROJECTIONS), task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(load_base(directory), config)
    ids = some_ids(shape)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.02, weight_decay=0
    )
    for _ in range(5):
        batch = torch.from_numpy(ids).long()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path / "theirs")

    adapter = read_adapter(tmp_path / "theirs")
    adapter.check_fits(shape)
    assert (adapter.rank, adapter.scaling, adapter.base) == (4, 2.5, None)
    theirs = logits_of(model, ids)
    assert np.abs(theirs - logits_of(load_base(directory), ids)).max() > 0.1
    found = InferenceModel.load(directory, tmp_path / "theirs").logits(ids)
    assert np.abs(found - theirs).max() <= TOLERANCE

    # And training goes on from it: with another adapter's pairs this loss would be another.
    settings = {"data": "world", "template": "alpaca", "steps": 1}
    config = FinetuneConfig.model_validate(settings)
    trainer = AdapterTrainer(read_model(directory), config, adapter)
    targets = np.pad(ids[:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    wanted = torch.nn.functional.cross_entropy(
        torch.from_numpy(theirs).flatten(0, 1), torch.from_numpy(targets).long().flatten()
    )
    assert trainer.step(ids, targets, 0.0)[0] == pytest.approx(float(wanted), abs=1e-5)


SPECS: dict[str, dict[str, Any]] = {
    "patterns": {
        "targets": ("q_proj", "v_proj", "up_proj"),
        "rank_pattern": {"q_proj": 5, r"layers\.1\.mlp\.up_proj": 2},
        "alpha_pattern": {r"layers\.0\..*": 3.0, "v_proj": 9.0},
    },
    "rslora": {"targets": ("k_proj", "o_proj"), "rslora": True, "rank_pattern": {"o_proj": 1}},
    "one expression": {"targets": r".*layers\.1\.(self_attn|mlp)\.(q|down)_proj"},
    "some layers": {"targets": ("v_proj", "mlp.up_proj"), "layers": (1,)},
    "all but some": {"targets": "all-linear", "excluded": ("o_proj", "layers.0.mlp.up_proj")},
}


@pytest.mark.parametrize("name", SPECS)
def test_any_selection_means_the_same_to_peft(tmp_path: Path, name: str) -> None:
    """Ours read by peft, and what peft saves of it read by us: modules, ranks, scales, logits."""
    directory, shape = tmp_path / "base", tiny()
    write_hf(directory, shape)
    spec = LoraSpec(3, 6.0, **SPECS[name])
    rng = np.random.default_rng(1)
    tensors = {
        module: (draw(rng, 0.3, a), draw(rng, 0.1, b))
        for module, (a, b) in spec.shapes(shape).items()
    }
    (tmp_path / "ours").mkdir()
    write_adapter(tmp_path / "ours", Adapter(**vars(spec), tensors=tensors))
    model = peft.PeftModel.from_pretrained(load_base(directory), tmp_path / "ours")
    theirs = {
        module_name.removeprefix("base_model.model."): (
            layer.r["default"],
            layer.scaling["default"],
        )
        for module_name, layer in model.named_modules()
        if hasattr(layer, "lora_A")
    }
    assert theirs == {module: (spec.rank_of(module), spec.scaling_of(module)) for module in tensors}
    ids = some_ids(shape)
    found = InferenceModel.load(directory, tmp_path / "ours").logits(ids)
    assert np.abs(found - logits_of(load_base(directory), ids)).max() > 0.05
    assert np.abs(found - logits_of(model, ids)).max() <= TOLERANCE

    model.save_pretrained(tmp_path / "theirs")
    back = read_adapter(tmp_path / "theirs")
    back.check_fits(shape)
    assert back.pairs() == theirs
    for module, (a, b) in tensors.items():
        np.testing.assert_array_equal(back.tensors[module][0], a)
        np.testing.assert_array_equal(back.tensors[module][1], b)


def test_the_first_20_losses_are_pefts(tmp_path: Path) -> None:
    directory, shape = tmp_path / "base", tiny()
    write_hf(directory, shape)
    config = FinetuneConfig.model_validate(
        {
            "data": "world",
            "template": "alpaca",
            "steps": 20,
            "max_length": 64,
            "batch": {"global_size": 6, "per_device_size": 2},
            "optimizer": {"learning_rate": 0.01, "clip_norm": 0.5, "weight_decay": 0.05},
            "schedule": {"warmup_steps": 4},
        }
    )
    model, encoder = read_base(directory, config.max_length)
    examples = [
        Example(f"f:{i}", (Turn("user", "q" * (1 + i % 9)), Turn("assistant", "xyz"[: 1 + i % 3])))
        for i in range(20)
    ]
    dataset = build_dataset(examples, config.template, encoder, config.max_length)
    batches = Batches([alone(e) for e in dataset.examples], 6, config.seed, encoder.eos_id)
    rates = [learning_rate(k + 1, 20, 0.01, config.schedule) for k in range(20)]

    trainer = AdapterTrainer(model, config)
    start = trainer.tensors()
    ours = [float(trainer.step(*batches.batch(k), rates[k])[0]) for k in range(20)]
    theirs, end = train_with_peft(directory, start, config, batches, rates)

    assert ours[0] - ours[-1] > 1.0  # they learn
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
    for module, (a, b) in trainer.tensors().items():
        assert np.abs(a - end[f"{module}.lora_A"]).max() < 1e-3
        assert np.abs(b - end[f"{module}.lora_B"]).max() < 1e-3


def train_with_peft(
    directory: Path,
    start: dict[str, tuple[np.ndarray, np.ndarray]],
    config: FinetuneConfig,
    batches: Batches,
    rates: list[float],
) -> tuple[list[float], dict[str, np.ndarray]]:
    """The same training in torch and peft: losses before each step, and the adapter at the end."""
    lora = peft.LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,
        target_modules=list(config.lora.targets),
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(load_base(directory), lora)
    parameters = {
        name.removeprefix("base_model.model.").replace(".default.weight", ""): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    with torch.no_grad():
        for module, (a, b) in start.items():
            parameters[f"{module}.lora_A"].copy_(torch.from_numpy(a))
            parameters[f"{module}.lora_B"].copy_(torch.from_numpy(b))
    settings = config.optimizer
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    losses = []
    for step, rate in enumerate(rates):
        inputs, targets = (torch.from_numpy(array).long() for array in batches.batch(step))
        logits = model(inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), settings.clip_norm)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, {name: p.detach().numpy() for name, p in parameters.items()}
