"""The adapter's first values, and the state that a killed run goes on from."""

from pathlib import Path

import numpy as np
import pytest

from artifacts.adapter import adapter_shapes
from stages.finetune.lora import initial_adapter
from stages.finetune.resume import STATE, State, clear_state, load_state, save_state
from tests.tiny_models import tiny


def some_state(steps: int = 3) -> State:
    rng = np.random.default_rng(steps)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return State(
        steps,
        steps,
        {"model.layers.0.self_attn.q_proj": (draw(2, 4), draw(4, 2))},
        {"layers.0.q_proj.lora_A": draw(2, 4)},
        {"layers.0.q_proj.lora_A": draw(2, 4)},
        rng.standard_normal((steps, 4)),
    )


def test_a_state_comes_back_bitwise(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    save_state(tmp_path, some_state(2))
    save_state(tmp_path, some_state(3))
    ours, back = some_state(3), load_state(tmp_path)
    assert back is not None
    assert (back.steps, back.updates) == (3, 3)
    for mine, theirs in (
        (ours.means, back.means),
        (ours.squares, back.squares),
        ({"history": ours.history}, {"history": back.history}),
        (dict(enumerate(*ours.tensors.values())), dict(enumerate(*back.tensors.values()))),
    ):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert value.dtype == theirs[key].dtype
            assert value.tobytes() == theirs[key].tobytes()
    clear_state(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_was_cut_leaves_the_state_before(tmp_path: Path) -> None:
    save_state(tmp_path, some_state(2))
    (tmp_path / (STATE + ".tmp")).write_bytes(b"half of a st")
    back = load_state(tmp_path)
    assert back is not None
    assert back.steps == 2


@pytest.mark.parametrize("damage", ["cut", "emptied", "no metadata", "one bit"])
def test_a_broken_state_means_beginning_anew(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_state(tmp_path, some_state())
    path = tmp_path / STATE
    data = path.read_bytes()
    path.write_bytes(
        {
            "cut": data[:-10],
            "emptied": b"",
            "one bit": data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
            "no metadata": data.replace(b'"steps"', b'"staps"'),
        }[damage]
    )
    assert load_state(tmp_path) is None
    assert "beginning anew" in capsys.readouterr().out


def test_the_adapter_starts_at_the_base_and_follows_the_seed() -> None:
    shape = tiny()
    shapes = adapter_shapes(shape, ("q_proj", "down_proj"), 4)
    pairs = initial_adapter(shapes, seed=1)
    assert len(pairs) == 2 * shape.layers
    for a, b in pairs.values():
        assert a.dtype == b.dtype == np.float32
        assert not b.any()
        bound = 1 / np.sqrt(a.shape[1])
        assert 0.9 * bound < np.abs(a).max() <= bound
        assert abs(a.std() - bound / np.sqrt(3)) < 0.15 * bound  # uniform
    again, other = (initial_adapter(shapes, seed) for seed in (1, 2))
    for module, (a, _) in pairs.items():
        np.testing.assert_array_equal(a, again[module][0])
        assert not np.array_equal(a, other[module][0])
    first, second = (pairs[f"model.layers.{i}.self_attn.q_proj"][0] for i in (0, 1))
    assert not np.array_equal(first, second)
