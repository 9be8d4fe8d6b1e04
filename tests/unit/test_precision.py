"""Half precision: gradients scaled and scaled back, overflows skipped, what cannot be refused."""

import numpy as np
import pytest

from artifacts.errors import BadInput
from stages.engine import runtime, weights
from stages.engine.model import Decoder
from stages.engine.precision import LARGEST_SCALE, STEPS_TO_DOUBLE, LossScale, check_device
from stages.engine.settings import OptimizerConfig
from stages.engine.training import Trainer
from tests.exact_gradients import exact_gradients
from tests.unit.test_engine_training import architecture, random_batch, random_tensors
from tests.unit.test_pretrain_config import refusal

runtime.start("CPU")


def test_gradients_in_fp16_are_near_and_an_overflow_changes_nothing() -> None:
    shape = architecture(family="qwen3")
    tensors = random_tensors(shape, seed=1)
    batch = random_batch(shape, 3, 10, seed=2)
    decoder = Decoder(shape, precision="fp16")
    weights.load(decoder, shape, tensors)
    trainer = Trainer(shape, decoder, OptimizerConfig(), loss_scale=LossScale(2.0**60))
    assert trainer.loss_scale is not None
    for steps_done in range(1, 3):  # alone, then accumulated: two graphs
        result = trainer.step([batch] * steps_done, 1e-2)
        assert not result.applied
        assert np.isfinite(result.loss)
        assert trainer.loss_scale.value == 2.0 ** (60 - steps_done)
    assert trainer.updates == 0
    held = weights.read_base(decoder, shape)
    assert all(np.array_equal(held[name], tensors[name]) for name in tensors)

    exact = exact_gradients(shape, tensors, batch.ids_BT, batch.labels_BT)
    tokens = (batch.labels_BT >= 0).sum()
    norm = np.sqrt(sum((gradient**2).sum() for gradient in exact.values())) / tokens
    trainer.loss_scale.value = 2.0**16
    trainer.drop()
    trainer._set_factor(batch)
    trainer.accumulate(batch)
    factor = 2.0**16 / 32  # 30 rows, to the next power of two
    for name, gradient in weights.to_hf(shape, trainer.accumulated()):
        apart = np.linalg.norm(gradient / factor - exact[name])
        assert 1e-5 < apart / np.linalg.norm(exact[name]) < 1e-2, name
    trainer.drop()
    result = trainer.step([batch], 1e-2)
    assert result.applied
    assert result.gradient_norm == pytest.approx(norm, rel=1e-3)


def test_a_dynamic_scale_halves_and_doubles_and_a_static_one_stays() -> None:
    scale = LossScale()
    for _ in range(STEPS_TO_DOUBLE - 1):
        scale.after(applied=True)
    assert scale.value == 2.0**16
    scale.after(applied=False)
    assert (scale.value, scale.good_steps) == (2.0**15, 0)
    for _ in range(STEPS_TO_DOUBLE):
        scale.after(applied=True)
    assert (scale.value, scale.good_steps) == (2.0**16, 0)
    ends = LossScale(1.0), LossScale(LARGEST_SCALE, good_steps=STEPS_TO_DOUBLE - 1)
    ends[0].after(applied=False)
    ends[1].after(applied=True)
    assert [end.value for end in ends] == [1.0, LARGEST_SCALE]
    static = LossScale(100.0, is_dynamic=False)
    static.after(applied=False)
    assert static.value == 100.0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput, match="no matrix product on CPU; fp32 would be right, or fp16"):
        check_device("bf16", "CPU")
    check_device("bf16", "Ascend")
    check_device("fp16", "CPU")
    assert "on CPU" in refusal({"global_size": 1}, precision="bf16", device="CPU")
    text = refusal({"global_size": 1}, loss_scale=1024)
    assert "loss_scale: is 1024.0; with precision fp32 nothing is scaled" in text
    assert "loss_scale" in refusal({"global_size": 1}, precision="fp16", loss_scale=-1)
