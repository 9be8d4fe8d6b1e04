"""Gradients, losses and steps of the engine against float64 numpy and plain arithmetic."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from artifacts.architecture import Architecture
from stages.convert.reference import reference_logits
from stages.engine import causal, model, runtime, weights
from stages.engine.groups import data_mesh
from stages.engine.model import Decoder, Lora
from stages.engine.optimizer import AdamW
from stages.engine.settings import OptimizerConfig, ScheduleConfig, learning_rate
from stages.engine.trainers import make_trainer
from stages.engine.training import Batch, Trainer, positions_in_documents
from tests.exact_gradients import exact_gradients

runtime.start("CPU")
IGNORED = -100


def architecture(**changes: object) -> Architecture:
    values: dict[str, object] = {
        "vocab_size": 61,
        "hidden_size": 32,
        "layers": 1,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 24,
        "max_positions": 64,
    }
    return Architecture.model_validate(values | changes)


def random_tensors(shape: Architecture, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(size) * 0.15 + ("norm" in name)).astype(np.float32)
        for name, size in shape.tensor_shapes().items()
    }


def trainer_for(
    shape: Architecture, tensors: dict[str, np.ndarray], **settings: float
) -> tuple[Trainer, Decoder]:
    decoder = Decoder(shape)
    weights.load(decoder, shape, tensors)
    return Trainer(shape, decoder, OptimizerConfig.model_validate(settings)), decoder


def random_batch(shape: Architecture, rows: int, length: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, shape.vocab_size, (rows, length))
    labels = rng.integers(0, shape.vocab_size, (rows, length))
    for row in range(rows):  # rows with very different numbers of labels
        labels[row, : rng.integers(0, length)] = IGNORED
    return Batch(ids, labels)


def reference_loss(shape: Architecture, tensors: dict[str, np.ndarray], batch: Batch) -> float:
    """Sum over labelled tokens, float64."""
    logits = reference_logits(shape, tensors, batch.ids_BT)
    logits = logits - logits.max(-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rows, columns = np.nonzero(batch.labels_BT >= 0)
    return -float(logprobs[rows, columns, batch.labels_BT[rows, columns]].sum())


@pytest.mark.parametrize(
    "changes",
    [
        {"family": "llama"},
        {"family": "qwen2", "tied_head": False},
        {"family": "qwen3", "kv_heads": 1, "intermediate_size": 48},
    ],
    ids=["llama", "qwen2-untied", "qwen3-one-kv-head"],
)
def test_gradients_are_the_slopes_of_a_float64_loss(changes: dict[str, object]) -> None:
    shape = architecture(**changes)
    tensors = random_tensors(shape, seed=1)
    batch = random_batch(shape, 3, 10, seed=2)
    trainer, _ = trainer_for(shape, tensors)
    trainer.accumulate(batch)
    gradients = dict(weights.to_hf(shape, trainer.accumulated()))
    assert set(gradients) == set(tensors)
    rng = np.random.default_rng(3)
    exact = {name: value.astype(np.float64) for name, value in tensors.items()}
    for name, gradient in gradients.items():
        direction = rng.standard_normal(gradient.shape)
        direction /= np.linalg.norm(direction)
        h = 1e-5
        ahead = reference_loss(shape, exact | {name: exact[name] + h * direction}, batch)
        behind = reference_loss(shape, exact | {name: exact[name] - h * direction}, batch)
        slope = (ahead - behind) / (2 * h)
        ours = float((gradient.astype(np.float64) * direction).sum())
        # Against the whole gradient's length: a random direction may be nearly flat.
        assert abs(ours - slope) <= 5e-6 * np.linalg.norm(gradient), name


@pytest.mark.parametrize("length", [10, causal.HALVED_FROM])
@pytest.mark.parametrize("changes", [{}, {"family": "qwen3", "layers": 2, "tied_head": False}])
def test_gradients_are_those_of_float64(changes: dict[str, object], length: int) -> None:
    shape = architecture(**changes)
    tensors = random_tensors(shape, seed=1)
    batch = random_batch(shape, 3, length, seed=2)
    trainer, _ = trainer_for(shape, tensors)
    trainer.accumulate(batch)
    exact = exact_gradients(shape, tensors, batch.ids_BT, batch.labels_BT)
    found = dict(weights.to_hf(shape, trainer.accumulated()))
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():
        apart = np.linalg.norm(found[name].astype(np.float64) - gradient)
        assert apart <= 3e-6 * np.linalg.norm(gradient), name


@pytest.mark.parametrize("length", [10, causal.HALVED_FROM])
def test_a_bias_too_large_to_repeat_is_added_as_it_is(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "LARGEST_REPEATED_BIAS", 0)
    test_gradients_are_those_of_float64({}, length)


@pytest.mark.parametrize("window", [None, 50])
def test_attention_in_halves_is_attention(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = "llama" if window is None else "mistral"
    shape = architecture(family=family, layers=2, max_positions=256, sliding_window=window)
    tensors = random_tensors(shape, seed=1)
    plain = random_batch(shape, 2, 200, seed=2)
    documents = np.repeat([[0, 1, 2, 3], [0, 0, 0, 4]], 50, axis=1)
    packed = Batch(plain.ids_BT, plain.labels_BT, documents)

    def gradients() -> dict[str, np.ndarray]:
        trainer, _ = trainer_for(shape, tensors)
        trainer.accumulate_all([plain, packed])
        return trainer.accumulated()

    assert causal.halves(200)
    halved = gradients()
    monkeypatch.setattr(causal, "HALVED_FROM", 1000)
    for name, whole in gradients().items():
        apart = np.linalg.norm(halved[name] - whole)
        assert 0 < apart <= 2e-6 * np.linalg.norm(whole), name


def test_loss_counts_labelled_tokens_only() -> None:
    shape = architecture()
    tensors = random_tensors(shape, seed=1)
    batch = random_batch(shape, 4, 12, seed=5)
    trainer, _ = trainer_for(shape, tensors)
    total, tokens = trainer.evaluate([batch])
    assert tokens == (batch.labels_BT >= 0).sum() < batch.labels_BT.size
    assert abs(total - reference_loss(shape, tensors, batch)) <= 1e-5 * tokens


def test_any_split_into_micro_batches_is_the_same_step() -> None:
    shape = architecture()
    tensors = random_tensors(shape, seed=1)
    whole = random_batch(shape, 8, 10, seed=6)
    counts = (whole.labels_BT >= 0).sum(axis=1)
    assert len(set(counts)) > 4  # otherwise a mean of means would pass
    results, ends = [], []
    for size in (8, 4, 1):
        trainer, decoder = trainer_for(shape, tensors, eps=1e-3)
        parts = [
            Batch(whole.ids_BT[i : i + size], whole.labels_BT[i : i + size])
            for i in range(0, 8, size)
        ]
        results.append(trainer.step(parts, 1e-2))
        ends.append(weights.read_base(decoder, shape))
    assert {result.tokens for result in results} == {counts.sum()}
    for result, end in zip(results[1:], ends[1:], strict=True):
        assert abs(result.loss - results[0].loss) <= 1e-6
        assert abs(result.gradient_norm - results[0].gradient_norm) <= 1e-5
        for name in end:
            assert np.abs(end[name] - ends[0][name]).max() <= 2e-6, name


@pytest.mark.parametrize("tied", [False, True])
def test_layers_computed_again_train_alike(tied: bool) -> None:
    shape = architecture(family="qwen3", layers=3, tied_head=tied)
    tensors = random_tensors(shape, seed=3)
    batches = [random_batch(shape, 2, 12, seed) for seed in (4, 5)]
    held = []
    for recompute in (False, True):
        decoder = Decoder(shape)
        weights.load(decoder, shape, tensors)
        trainer = make_trainer(shape, decoder, OptimizerConfig(), data_mesh(1), None, recompute)
        results = [trainer.step(batches, 1e-2) for _ in range(3)]
        numbers = [number for one in results for number in (one.loss, one.gradient_norm)]
        after = [p.asnumpy().copy() for _, p in decoder.parameters_and_names()]
        held.append([np.array(numbers), *after, np.array(trainer.evaluate(batches))])
    for plain, again in zip(*held, strict=True):
        if tied:  # its embedding's gradient is added up in another order
            np.testing.assert_allclose(again, plain, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(again, plain)


def test_accumulators_are_empty_after_a_step() -> None:
    shape = architecture()
    tensors = random_tensors(shape, seed=1)
    batch = random_batch(shape, 2, 8, seed=7)
    trainer, _ = trainer_for(shape, tensors)
    trainer.step([batch, batch], 1e-3)
    assert all((value == 0).all() for value in trainer.accumulated().values())


def test_a_batch_without_labels_gives_no_nan() -> None:
    shape = architecture()
    trainer, decoder = trainer_for(shape, random_tensors(shape, seed=1))
    ids = np.zeros((2, 8), np.int32)
    result = trainer.step([Batch(ids, np.full_like(ids, IGNORED))], 1e-3)
    assert (result.loss, result.tokens, result.gradient_norm) == (0.0, 0, 0.0)
    assert all(np.isfinite(value).all() for value in weights.read_base(decoder, shape).values())


def test_packed_documents_do_not_see_each_other() -> None:
    shape = architecture()
    tensors = random_tensors(shape, seed=1)
    rng = np.random.default_rng(8)
    first, second = rng.integers(0, 61, (2, 6)), rng.integers(0, 61, (2, 4))
    packed = np.concatenate([first, second], axis=1)
    labels = np.roll(packed, -1, axis=1)
    labels[:, [5, 9]] = IGNORED
    documents = np.repeat([[0] * 6 + [1] * 4], 2, axis=0)
    trainer, _ = trainer_for(shape, tensors)
    alone = sum(
        trainer.evaluate([Batch(ids, part)])[0]
        for ids, part in ((first, labels[:, :6]), (second, labels[:, 6:]))
    )
    together, _ = trainer.evaluate([Batch(packed, labels, documents)])
    blind, _ = trainer.evaluate([Batch(packed, labels)])
    assert abs(together - alone) <= 1e-4
    assert abs(blind - alone) > 1e-2
    assert positions_in_documents(documents)[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]


def test_lora_starts_as_the_base_and_leaves_it_alone() -> None:
    shape = architecture(layers=2)
    tensors = random_tensors(shape, seed=1)
    targets = ("q_proj", "v_proj", "o_proj", "down_proj")
    decoder = Decoder(shape, Lora.everywhere(shape, rank=2, scaling=2.0, targets=targets))
    weights.load(decoder, shape, tensors)
    rng = np.random.default_rng(4)
    pairs = {
        module: (rng.standard_normal(a.shape).astype(np.float32) * 0.1, np.zeros_like(b))
        for module, (a, b) in weights.read_adapter_tensors(decoder).items()
    }
    weights.load_adapter(decoder, pairs)
    weights.freeze(decoder, {slot.parameter for slot in weights.slots(shape)})
    trainer = Trainer(shape, decoder, OptimizerConfig(weight_decay=0.0))
    assert len(trainer.names) == 2 * 2 * len(targets)
    batch = random_batch(shape, 3, 10, seed=2)
    before = trainer.evaluate([batch])[0]
    assert abs(before - reference_loss(shape, tensors, batch)) <= 1e-4
    losses = [trainer.step([batch], 1e-2).loss for _ in range(5)]
    assert losses[-1] < losses[0]
    base = weights.read_base(decoder, shape)
    assert all(np.array_equal(base[name], tensors[name]) for name in tensors)
    found = weights.read_adapter_tensors(decoder)
    merged = dict(tensors)
    for module, (a, b) in found.items():
        merged[module + ".weight"] = tensors[module + ".weight"] + 2.0 * b @ a
    assert abs(trainer.evaluate([batch])[0] - reference_loss(shape, merged, batch)) <= 1e-4


class TwoGradients(nn.Cell):
    """MindSpore takes a tuple given to the outermost cell for a constant; hence one by one."""

    def __init__(self, optimizer: AdamW):
        super().__init__()
        self.optimizer = optimizer

    def construct(
        self, a: Tensor, b: Tensor, tokens: Tensor, rate: Tensor, eps: Tensor, decay: Tensor
    ) -> Tensor:
        return self.optimizer((a, b), tokens, rate, eps, decay)


def test_adamw_against_float64() -> None:
    config = OptimizerConfig(beta1=0.9, beta2=0.95, eps=1e-6, weight_decay=0.3, clip_norm=0.7)
    rng = np.random.default_rng(0)
    exact = {"matrix": rng.standard_normal((5, 3)), "vector": rng.standard_normal(4)}
    held = [Parameter(Tensor(v.astype(np.float32)), name=n) for n, v in exact.items()]
    optimizer = AdamW(held, config)
    step = TwoGradients(optimizer)
    m = {name: np.zeros_like(value) for name, value in exact.items()}
    v = {name: np.zeros_like(value) for name, value in exact.items()}
    tokens = 7.0
    for t in range(1, 31):
        rate = 0.05 / t
        # Sums over tokens; some steps are clipped and some are not.
        raw = {n: rng.standard_normal(x.shape) * tokens * 0.4 / t for n, x in exact.items()}
        norm = np.sqrt(sum((g**2).sum() for g in raw.values())) / tokens
        for name in exact:
            gradient = raw[name] / tokens * min(1.0, 0.7 / (norm + 1e-6))
            m[name] = 0.9 * m[name] + 0.1 * gradient
            v[name] = 0.95 * v[name] + 0.05 * gradient**2
            corrected = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.95**t)) + 1e-6)
            decay = 0.3 if name == "matrix" else 0.0
            exact[name] = exact[name] - rate * (corrected + decay * exact[name])
        gradients = tuple(Tensor(raw[name].astype(np.float32)) for name in exact)
        found = step(*gradients, Tensor(np.float32(tokens)), *optimizer.scalars(t, rate))
        assert abs(float(found.asnumpy()) - norm) <= 1e-6 * norm
    for parameter, expected in zip(held, exact.values(), strict=True):
        assert np.abs(parameter.asnumpy() - expected).max() <= 2e-6


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    config = OptimizerConfig()
    held = [Parameter(Tensor(np.ones((2, 2), np.float32)), name=name) for name in "ab"]
    optimizer = AdamW(held, config)
    step = TwoGradients(optimizer)
    one = Tensor(np.float32(1.0))
    for value in (1.0, np.nan, np.inf):
        gradient = np.full((2, 2), 0.1, np.float32)
        gradient[0, 1] = value
        before = [p.asnumpy().copy() for p in (*held, *optimizer.means, *optimizer.squares)]
        step(Tensor(gradient), Tensor(gradient), one, *optimizer.scalars(1, 1e-2))
        after = [p.asnumpy() for p in (*held, *optimizer.means, *optimizer.squares)]
        same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert same == (not np.isfinite(value))


def test_the_learning_rate_is_not_baked_into_the_graph() -> None:
    shape = architecture()
    tensors = random_tensors(shape, seed=1)
    batch = random_batch(shape, 2, 8, seed=3)
    trainer, decoder = trainer_for(shape, tensors, weight_decay=0.0)
    trainer.step([batch], 1e-2)
    first = weights.read_base(decoder, shape)
    trainer.step([batch], 0.0)
    second = weights.read_base(decoder, shape)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_schedule_by_hand() -> None:
    schedule = ScheduleConfig(warmup_steps=10, floor_ratio=0.05)
    rates = [learning_rate(step, 110, 2.0, schedule) for step in range(1, 111)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == pytest.approx(2.0)
    assert rates[59] == pytest.approx(2.0 * (0.05 + 0.95 * 0.5))
    assert rates[109] == pytest.approx(0.1)
    assert learning_rate(1, 5, 1.0, ScheduleConfig(warmup_steps=0)) < 1.0
