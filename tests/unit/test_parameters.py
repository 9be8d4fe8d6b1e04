"""The deployment's form asks what the config asks, with its types, choices, bounds and help."""

import pytest
from pydantic import ValidationError

from flows.lifecycle import load_work
from flows.parameters import CHANGEABLE, Changes, changes_of, named_configs
from tests.command import ROOT

TINY = ROOT / "configs" / "tiny.yaml"


def test_every_field_is_one_of_the_config_and_says_what_it_says():
    schema = changes_of().model_json_schema()["properties"]
    assert [field["title"] for field in schema.values()] == list(CHANGEABLE)
    assert all(field["description"] for field in schema.values())
    assert schema["pretrain_steps"]["type"] == "integer"
    assert schema["pretrain_steps"]["exclusiveMinimum"] == 0
    assert schema["pretrain_device"]["enum"] == ["auto", "CPU", "GPU", "Ascend"]
    assert set(schema["pretrain_seed"]) >= {"minimum", "exclusiveMaximum"}
    assert not any("anyOf" in field for field in schema.values())


def test_a_stage_offers_its_own_sections_only():
    names = changes_of("gate", "baseline").model_fields
    assert set(names) == {"gate_approval", "baseline"}


def test_what_is_changed_reaches_the_config_and_what_is_empty_does_not():
    kind = changes_of()
    assert kind().overrides() == Changes().overrides() == []
    changes = kind.model_validate(
        {"pretrain_steps": 7, "pretrain_optimizer_learning_rate": 1e-05, "gate_approval": True}
    )
    configs = load_work(TINY, changes.overrides()).configs
    assert configs["pretrain"].steps == 7
    assert configs["pretrain"].optimizer.learning_rate == 1e-05
    assert configs["gate"].needs_approval()
    assert configs["pretrain"].device == load_work(TINY).configs["pretrain"].device


@pytest.mark.parametrize(
    "wrong", [{"pretrain_steps": 0}, {"pretrain_device": "TPU"}, {"pretrain_step": 1}]
)
def test_what_the_config_would_refuse_the_form_refuses(wrong):
    with pytest.raises(ValidationError):
        changes_of().model_validate(wrong)


def test_the_clone_s_configs_are_the_choices():
    assert {"configs/quickstart.yaml", "configs/tiny.yaml"} <= set(named_configs(ROOT))
