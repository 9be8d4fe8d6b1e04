"""The golden logits in tests/assets are what transformers gives today.

Write them anew with `.venv-peers/bin/python -m tests.peers.test_golden_logits`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.tiny_models import random_weights, tiny

GOLDEN = Path(__file__).parent.parent / "assets" / "transformers_logits.json"

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-one-kv-head-untied": {"family": "llama", "kv_heads": 1, "tied_head": False},
    "mistral-all-kv-heads": {"family": "mistral", "kv_heads": 4},
    "qwen2": {"family": "qwen2"},
    "qwen3-untied": {"family": "qwen3", "tied_head": False},
}
COLUMNS = [0, 1, 17, 100, 259]


def inputs() -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask: padding left and right, and a hole."""
    ids = np.random.default_rng(0).integers(0, 260, (3, 7))
    mask = np.ones((3, 7), bool)
    mask[0, :3] = mask[1, 5:] = mask[2, 2] = False
    return ids, mask


def transformers_logits(changes: dict[str, Any]) -> np.ndarray:
    a = tiny(**changes)
    config = a.to_hf(dtype="float32", bos_id=None, eos_id=0, pad_id=1)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config), attn_implementation="eager"
    ).eval()
    state = {name: torch.tensor(value) for name, value in random_weights(a).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    ids, mask = inputs()
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    with torch.no_grad():
        return model(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask).long(),
            position_ids=torch.tensor(positions),
        ).logits.numpy()


@pytest.mark.parametrize("name", MODELS)
def test_golden_logits_are_current(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    ids, mask = inputs()
    assert golden["ids"] == ids.tolist()
    assert golden["mask"] == mask.tolist()
    logits = transformers_logits(golden["models"][name]["architecture"])
    wanted = np.array(golden["models"][name]["logits"])
    assert np.abs(logits[:, :, COLUMNS] - wanted)[mask].max() < 2e-6


def main() -> None:
    """Write the golden file."""
    ids, mask = inputs()
    models = {
        name: {
            "architecture": changes,
            "logits": np.round(
                transformers_logits(changes)[:, :, COLUMNS].astype(np.float64), 8
            ).tolist(),
        }
        for name, changes in MODELS.items()
    }
    content = {
        "made_by": f"transformers {transformers.__version__}, float32, tests/tiny_models.py",
        "ids": ids.tolist(),
        "mask": mask.tolist(),
        "columns": COLUMNS,
        "models": models,
    }
    GOLDEN.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
