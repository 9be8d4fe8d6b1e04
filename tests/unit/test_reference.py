"""The float64 reference against numbers that transformers gave, and against what it must obey."""

import json
from pathlib import Path

import numpy as np
import pytest

from stages.convert.reference import reference_logits
from tests.tiny_models import random_weights, tiny

GOLDEN = Path(__file__).parent.parent / "assets" / "transformers_logits.json"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("name", json.loads(GOLDEN.read_text())["models"])
def test_logits_are_those_of_transformers(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    entry = golden["models"][name]
    a = tiny(**entry["architecture"])
    logits = reference_logits(
        a, random_weights(a), np.array(golden["ids"]), np.array(golden["mask"], bool)
    )
    mask = np.array(golden["mask"], bool)
    error = np.abs(logits[:, :, golden["columns"]] - np.array(entry["logits"]))[mask].max()
    assert error < 5e-6  # transformers computes the rotary embedding and norms in float32


@pytest.mark.parametrize("family", FAMILIES)
def test_later_tokens_change_nothing_before_them(family) -> None:
    a = tiny(family)
    weights = random_weights(a)
    ids = np.random.default_rng(1).integers(0, a.vocab_size, (1, 9))
    changed = ids.copy()
    changed[0, 5:] = (changed[0, 5:] + 1) % a.vocab_size
    one, other = reference_logits(a, weights, ids), reference_logits(a, weights, changed)
    assert np.array_equal(one[:, :5], other[:, :5])
    assert np.abs(one[:, 5:] - other[:, 5:]).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(family, side: str) -> None:
    a = tiny(family)
    weights = random_weights(a)
    ids = np.random.default_rng(1).integers(0, a.vocab_size, (1, 6))
    around = (3, 0) if side == "left" else (0, 3)
    padded = np.pad(ids, ((0, 0), around), constant_values=7)
    mask = np.pad(np.ones((1, 6), bool), ((0, 0), around))
    logits = reference_logits(a, weights, padded, mask)
    assert np.isfinite(logits).all()
    assert np.abs(logits[mask] - reference_logits(a, weights, ids)[0]).max() < 1e-12


def test_only_distances_between_positions_matter() -> None:
    a = tiny()
    weights = random_weights(a)
    ids = np.random.default_rng(1).integers(0, a.vocab_size, (1, 6))
    base = np.arange(6)[None]
    plain, moved, spread = (
        reference_logits(a, weights, ids, positions_BT=positions)
        for positions in (base, base + 13, base * 2)
    )
    assert np.abs(plain - moved).max() < 1e-12
    assert np.abs(plain - spread).max() > 1e-3


def test_each_key_head_serves_its_own_group_of_queries() -> None:
    """Repeating the key/value heads in the stored weights must give the same model."""
    a, full = tiny(kv_heads=2), tiny(kv_heads=4)
    weights = random_weights(a)
    repeated = dict(weights)
    for name, value in weights.items():
        if "k_proj" in name or "v_proj" in name:
            heads = value.reshape(2, a.head_dim, -1)
            repeated[name] = np.repeat(heads, 2, axis=0).reshape(4 * a.head_dim, -1)
    ids = np.random.default_rng(1).integers(0, a.vocab_size, (2, 6))
    same = reference_logits(full, repeated, ids)
    assert np.abs(reference_logits(a, weights, ids) - same).max() < 1e-12
