"""The evaluation's config: what is refused, what is read, what becomes part of the identity."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.errors import BadInput
from artifacts.validation import sentences
from stages.evaluate.config import EvaluateConfig, TaskConfig
from tests.evaluation import rows, write_ceval, write_mmlu


def task(**changes: Any) -> dict[str, Any]:
    return {"suite": "mmlu", "data": "world"} | changes


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"tasks": []}, "evaluate.tasks: names no task"),
        ({}, "evaluate.tasks: is required and missing"),
        ({"tasks": [task(suite="mmul")]}, "evaluate.tasks.0.suite: is 'mmul'"),
        ({"tasks": [task(shots=5)]}, "evaluate.tasks.0.shots: is no known key"),
        ({"tasks": [task(num_fewshot=-1)]}, "evaluate.tasks.0.num_fewshot: is -1"),
        ({"tasks": [task(limit=0)]}, "a whole number from 1 or a share"),
        ({"tasks": [task(limit=2.5)]}, "a whole number from 1 or a share"),
        ({"tasks": [task(data="local")]}, "path is missing"),
        ({"tasks": [task(path="x")]}, "path is 'x'; data: world takes none"),
        ({"tasks": [task(revision="x")]}, "revision is 'x'; data: world takes none"),
        ({"tasks": [task(suite="ceval", split="test")]}, "only val can be scored"),
        ({"tasks": [task(split="dev", num_fewshot=1)]}, "choose another"),
        ({"tasks": [task(subjects=["a", "a"])]}, "subjects names one twice"),
        ({"tasks": [task(name="a b")]}, "evaluate.tasks.0.name: is 'a b'"),
        ({"tasks": [task(), task()]}, "two are called 'world_mmlu'"),
        ({"tasks": [task(data="hub")]}, "set allow_network: true"),
        ({"tasks": [task()], "sampling": "hot"}, "evaluate.sampling: is 'hot'; no such profile"),
        ({"tasks": [task()], "batch_size": 0}, "evaluate.batch_size: is 0"),
    ],
)
def test_wrong_configs_are_told_by_field(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        EvaluateConfig.model_validate(config)
    assert says in "\n".join(sentences(caught.value, "evaluate"))


@pytest.mark.parametrize(
    "name",
    ["pretrained", "peft", "model", "tokenizer", "gguf_file", "base_url", "trust_remote_code"],
)
def test_no_other_model_is_scored_under_the_inputs_digest(name: str) -> None:
    model = {"name": "hf", "args": {"dtype": "float32", name: "other"}}
    with pytest.raises(ValidationError) as caught:
        EvaluateConfig.model_validate({"tasks": [task()], "lm_eval_model": model})
    (said,) = sentences(caught.value, "evaluate")
    assert said.startswith("evaluate.lm_eval_model.args: ")
    assert f"names {name}; the report goes by the digest of the stage's input" in said
    del model["args"][name]
    EvaluateConfig.model_validate({"tasks": [task()], "lm_eval_model": model})


def test_all_problems_are_told_together() -> None:
    with pytest.raises(ValidationError) as caught:
        EvaluateConfig.model_validate({"tasks": [task(suite="x"), task(limit=-1)], "batch_size": 0})
    assert len(sentences(caught.value, "evaluate")) == 3


def test_a_profile_is_dumped_by_its_values_and_reads_back() -> None:
    config = EvaluateConfig.model_validate({"tasks": [task()], "sampling": "greedy"})
    dumped = config.model_dump(mode="json")
    assert dumped["sampling"]["temperature"] == 0.0
    assert EvaluateConfig.model_validate(dumped) == config
    assert EvaluateConfig.model_validate({"tasks": [task()]}).sampling.temperature == 0.1
    assert config.seeds() == {"sampling": 0}


@pytest.mark.parametrize(
    ("limit", "count"), [(None, 7), (3, 3), (3.0, 3), (50, 7), (0.5, 4), (0.01, 1)]
)
def test_limits(limit: Any, count: int) -> None:
    assert TaskConfig(suite="mmlu", data="world", limit=limit).count(7) == count


def test_names() -> None:
    def title(**changes: Any) -> str:
        return TaskConfig.model_validate(task(**changes)).title

    assert title() == "world_mmlu"
    assert title(form="continuation", suite="ceval") == "world_ceval_continuation"
    assert title(data="local", path="x") == "mmlu"
    assert title(name="mine") == "mine"


def config_for(folder: Path, **changes: Any) -> EvaluateConfig:
    return EvaluateConfig.model_validate({"tasks": [task(data="local", path=folder, **changes)]})


def test_source_files_are_those_that_will_be_read(tmp_path: Path) -> None:
    subjects = {name: rows("AB") for name in ("anatomy", "virology")}
    for split in ("dev", "val", "test"):
        write_mmlu(tmp_path / "data", split, subjects)

    def files(**changes: Any) -> list[str]:
        found = config_for(tmp_path, **changes).source_files()
        return [str(path.relative_to(tmp_path / "data")) for path in found]

    test = ["test/anatomy_test.csv", "test/virology_test.csv"]
    assert files() == test
    assert files(num_fewshot=1) == [*test, "dev/anatomy_dev.csv", "dev/virology_dev.csv"]
    assert files(subjects=["virology"], split="val") == ["val/virology_val.csv"]


def test_missing_data_is_told_before_any_work(tmp_path: Path) -> None:
    write_ceval(tmp_path, "val", {"law": rows("A")})
    (tmp_path / "test").mkdir()
    with pytest.raises(BadInput, match=r"holds no file SUBJECT_test.csv"):
        config_for(tmp_path).source_files()
    with pytest.raises(BadInput, match=r"has no folder dev \(and no data/dev\)"):
        config_for(tmp_path, suite="ceval", num_fewshot=1).source_files()
    with pytest.raises(BadInput, match=r"tasks.ceval.subjects: .* has no logic; it has law"):
        config_for(tmp_path, suite="ceval", subjects=["logic"]).source_files()
