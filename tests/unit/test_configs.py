"""The configs that come with the project, their schema, and the deployments that name them."""

import json

import pytest
import yaml

from flows.config import read_yaml_file
from flows.lifecycle import STEPS, RunConfig, load_work
from flows.schema import SCHEMA_FILE, schema_text
from tests.command import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
EDITOR_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE.name}"
"""First line of every config beside the schema: editors with a YAML language server check it."""


def test_the_schema_file_is_current():
    assert (ROOT / SCHEMA_FILE).read_text(encoding="utf-8") == schema_text(), "run make schema"


def test_every_field_is_described_in_the_schema():
    schema = json.loads(schema_text())
    nameless = [
        f"{title}.{name}"
        for title, model in {"RunConfig": schema, **schema["$defs"]}.items()
        for name, field in model.get("properties", {}).items()
        # One possible value only says which branch of a union this is; a section that is described
        # as its class is refers to that.
        if not field.keys() & {"description", "const", "$ref"}
    ]
    assert nameless == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_configs_are_right_and_editors_know_their_schema(path):
    assert path.read_text(encoding="utf-8").splitlines()[0] == EDITOR_LINE
    config = RunConfig.model_validate(read_yaml_file(path))
    assert config.name == path.stem
    assert str(config.store) == "store"
    assert [step.name for step in load_work(path).steps] == [step.name for step in STEPS]


def test_a_rule_may_name_a_part_of_a_group_of_lm_evals():
    values = read_yaml_file(ROOT / "configs/quickstart.yaml")
    asked = values["evaluate"]["tasks"][0]["name"] = "first"
    values["evaluate"]["tasks"].append({"task": "glue", "data": "mirror", "path": "mirror"})

    def judged_by(task):
        rule = {"rule": "floor", "task": task, "at_least": 0.5}
        bundle = {"rules": [{"rule": "same_choices"}, rule]}
        return {**values, "gate": {"rules": [rule]}, "gate_bundle": bundle}

    for task in ("glue", "glue@acc", asked):
        RunConfig.model_validate(judged_by(task))
    for task in (f"{asked}@acc", "super_glue@acc", "glue_acc"):
        with pytest.raises(ValueError, match=rf"gate.rules.0.task: is '{task}'; evaluate asks"):
            RunConfig.model_validate(judged_by(task))


def test_every_step_gets_every_input_that_its_stage_requires():
    made = {}
    for step in STEPS:
        required = {role for role, wanted in step.spec.inputs.items() if wanted.required}
        assert required <= step.inputs.keys() <= step.spec.inputs.keys()
        for role, source in step.inputs.items():
            assert made[source] in step.spec.inputs[role].kinds
        made[step.name] = step.spec.makes


def test_deployments_are_the_lifecycle_and_every_stage():
    from flows import flows

    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    names = [entry["entrypoint"].partition(":")[2] for entry in deployments]
    assert names == ["lifecycle", *dict.fromkeys(step.spec.name for step in STEPS)]
    for entry, name in zip(deployments, names, strict=True):
        assert entry["entrypoint"].startswith("flows/flows.py:")
        assert entry["name"] == "default"
        flow = getattr(flows, name)
        flow.validate_parameters(entry["parameters"])
        assert (ROOT / entry["parameters"]["config"]).is_file()
        for schedule in entry.get("schedules", []):
            assert schedule["active"] is False
            assert schedule["slug"]
        described = flow.parameters.properties
        assert all(field["description"] for field in described.values()), name


@pytest.mark.parametrize(
    "parameters",
    [
        {"config": ""},
        {"config": 3},
        {"overrides": ["pretrain.steps"]},
        {"overrides": "pretrain.steps=3"},
        {"confg": "x"},
        {"model": "best"},
    ],
    ids=str,
)
def test_wrong_parameters_are_refused_before_a_run(parameters):
    from prefect.exceptions import ParameterTypeError, SignatureMismatchError

    from flows import flows

    with pytest.raises((ParameterTypeError, SignatureMismatchError, TypeError)):
        flows.evaluate.validate_parameters(parameters)
