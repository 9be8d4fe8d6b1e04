"""Fine-tuning's config: what is refused, in which words; steps from epochs; source files."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.errors import BadInput
from artifacts.validation import sentences
from stages.engine.settings import learning_rate
from stages.finetune.config import FinetuneConfig

OWN = {"files": ["data/*.jsonl"], "format": "alpaca"}


def config(**changes: Any) -> FinetuneConfig:
    values = {"data": "world", "template": "question", "steps": 10}
    return FinetuneConfig.model_validate(values | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "word"}, "finetune.data: is 'word'; input should be 'world'"),
        (
            {"data": {"files": [], "format": "alpaca"}},
            "finetune.data.files: tuple should have at least 1 item",
        ),
        (
            {"data": {"files": ["x"], "format": "csv"}},
            "finetune.data.format: is 'csv'; input should be 'alpaca'",
        ),
        ({"data": OWN | {"path": "x"}}, "finetune.data.path: is no known key"),
        ({"data": OWN | {"format": "messages"}}, "template: is 'question'; messages need chatml"),
        ({"template": "llama2"}, "template: is 'llama2'"),
        ({"epochs": 2}, "steps and epochs: both is set; one of them would be right"),
        ({"steps": None}, "steps and epochs: neither is set"),
        ({"steps": 0}, "finetune.steps: is 0; input should be greater than or equal to 1"),
        ({"lora": {"rank": 0}}, "lora.rank: is 0"),
        ({"lora": {"alpha": 0}}, "lora.alpha: is 0"),
        ({"lora": {"targets": ["lm_head"]}}, "lora.targets.0: is 'lm_head'"),
        ({"lora": {"targets": ["q_proj", "q_proj"]}}, "names one twice"),
        ({"lora": {"dropout": 0.1}}, "lora.dropout: is no known key"),
        (
            {"batch": {"global_size": 24, "per_device_size": 7}},
            "per_device_size 7 does not divide global_size 24; 6 would",
        ),
        (
            {"batch": {"global_size": 24, "per_device_size": 10**9}},
            "per_device_size 1000000000 does not divide global_size 24; 24 would",
        ),
        ({"steps": 10**30}, "less than or equal to 1000000000"),
        ({"lora": {"rank": 10**30}}, "less than or equal to 65536"),
        ({"steps": None, "epochs": 1e308}, "finetune.epochs: is 1e+308; input should be less"),
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate: is 0"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(**changes)
    assert said in "\n".join(sentences(caught.value, "finetune"))


def test_targets_have_one_order_and_so_one_identity() -> None:
    assert config(lora={"targets": ["up_proj", "q_proj"]}).lora.targets == ("q_proj", "up_proj")


@pytest.mark.parametrize(
    ("epochs", "examples", "steps"), [(1, 32, 2), (1, 33, 3), (2.5, 32, 5), (0.01, 16, 1)]
)
def test_epochs_become_whole_steps(epochs: float, examples: int, steps: int) -> None:
    assert config(steps=None, epochs=epochs).step_count(examples) == steps


def test_lora_has_its_own_customs() -> None:
    made = config()
    assert (made.optimizer.learning_rate, made.optimizer.weight_decay) == (2e-4, 0.0)
    assert learning_rate(10, 100, 1.0, made.schedule) == 1.0
    assert learning_rate(100, 100, 1.0, made.schedule) == 0.0


def test_source_files_are_the_patterns_files_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("b.jsonl", "a.jsonl", "c.json"):
        (tmp_path / "data" / name).write_text("{}")
    patterns = ["data/*.json", "data/*.jsonl", "data/a.jsonl"]
    found = config(data=OWN | {"files": patterns}).source_files()
    assert [path.as_posix() for path in found] == ["data/c.json", "data/a.jsonl", "data/b.jsonl"]
    assert config().source_files() == []
    with pytest.raises(BadInput) as caught:
        config(data=OWN | {"files": ["data/*.txt", "absent.json"]}).source_files()
    assert caught.value.problems == [
        "finetune.data.files.0: 'data/*.txt' fits no file",
        "finetune.data.files.1: 'absent.json' fits no file",
    ]
