"""The rules a model must pass, as config."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.errors import REJECTED
from artifacts.manifest import Manifest
from stages.spec import Input, StageConfig, StageSpec


class TaskRule(BaseModel):
    """A rule about one task."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    task: str = Field(min_length=1)
    """Name of the task in the eval-report, such as `mmlu_continuation`."""
    confidence: float = Field(0.95, ge=0.5, lt=1)
    """One-sided confidence of the bound; 0.95 approves 5 in 100 models that deserve a rejection."""


class Floor(TaskRule):
    """The score itself, less its error, reaches a value."""

    rule: Literal["floor"]
    at_least: float = Field(gt=0, le=1)
    """Micro accuracy that the lower bound must reach, as a share (0.8 is 80 %)."""


class GainOverBase(TaskRule):
    """The candidate beats the model it was tuned from, item by item."""

    rule: Literal["gain_over_base"]
    at_least: float = Field(0.0, ge=0, lt=1)
    """Gain in micro accuracy that the lower bound must exceed; 0 asks for any gain beyond noise."""


class NoRegression(TaskRule):
    """The candidate is not worse than a named baseline by more than a margin (non-inferiority)."""

    rule: Literal["no_regression"]
    margin: float = Field(0.01, gt=0, lt=1)
    """Loss in micro accuracy that is still accepted; the bound must stay above minus this."""


class GainOnAny(BaseModel):
    """The candidate beats the model it was tuned from on one of several tasks at least, each
    p-value adjusted for their number."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rule: Literal["gain_on_any"]
    tasks: tuple[str, ...] = Field(min_length=2)
    """Names of the tasks in the eval-report."""
    at_least: float = Field(0.0, ge=0, lt=1)
    """Gain in micro accuracy that must be exceeded."""
    confidence: float = Field(0.95, ge=0.5, lt=1)
    """1 - the chance that a model without any such gain passes, over all tasks together (Holm)."""

    @model_validator(mode="after")
    def _each_task_once(self) -> "GainOnAny":
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError("tasks names one twice; once would do")
        return self

    @property
    def task(self) -> str:
        """What the rule is called in messages and in the decision."""
        return ", ".join(self.tasks)


Rule = Annotated[Floor | GainOverBase | NoRegression | GainOnAny, Field(discriminator="rule")]


def tasks_of(rule: Floor | GainOverBase | NoRegression | GainOnAny) -> tuple[str, ...]:
    """The tasks a rule looks at."""
    return rule.tasks if isinstance(rule, GainOnAny) else (rule.task,)


class GateConfig(StageConfig):
    """When a model may be released: when every rule passes."""

    rules: list[Rule] = Field(min_length=1)
    """At least one: a gate without rules would approve everything. All must pass, so several rules
    make a false approval rarer, not likelier, and need no correction."""
    approval: bool = False
    """Ask a person as well, once every rule has passed. What follows waits for their yes: Prefect
    pauses the run with a form, elsewhere `mindcycle approve` gives it."""

    def needs_approval(self) -> bool:
        return self.approval

    @model_validator(mode="after")
    def _each_rule_once(self) -> "GateConfig":
        named = [(rule.rule, rule.task) for rule in self.rules]
        for rule, task in named:
            if named.count((rule, task)) > 1:
                raise ValueError(f"rules: {rule} stands twice for task {task}; keep one of them")
        return self


def exit_code(manifest: Manifest) -> int:
    """Of a process that has decided."""
    return REJECTED if manifest.headline["outcome"] == "rejected" else 0


SPEC = StageSpec(
    name="gate",
    makes="decision",
    config=GateConfig,
    inputs={
        "candidate": Input(("eval-report",)),
        "base": Input(("eval-report",), required=False),
        "baseline": Input(("eval-report",), required=False),
    },
    code_version=2,
    exit_code=exit_code,
)
