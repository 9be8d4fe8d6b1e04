"""When an exported bundle may stand for the model it was made from, as config."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.gate.config import Floor, TaskRule, exit_code
from stages.spec import Input, StageConfig, StageSpec


class SameChoices(BaseModel):
    """The bundle chooses as the model on every item of every task. What float32 must keep."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rule: Literal["same_choices"]

    @property
    def task(self) -> str:
        """What the rule is called in messages and in the decision."""
        return "all tasks"


class NoLoss(TaskRule):
    """On the same items the bundle is not worse than the model by more than a margin."""

    rule: Literal["no_loss"]
    margin: float = Field(0.02, gt=0, lt=1)
    """Loss in micro accuracy, as a share, that rounding may cost; the bound of the paired
    difference must stay above minus this."""


BundleRule = Annotated[SameChoices | NoLoss | Floor, Field(discriminator="rule")]


class BundleGateConfig(StageConfig):
    """When a bundle may be released in its model's stead: when every rule passes."""

    rules: list[BundleRule] = Field([SameChoices(rule="same_choices")], min_length=1)
    """By default same_choices, which an export in fp32 must keep. For weights that are rounded
    (export.precision) say what that may cost: no_loss against the model, or a floor."""

    @model_validator(mode="after")
    def _each_rule_once(self) -> "BundleGateConfig":
        named = [(rule.rule, rule.task) for rule in self.rules]
        for rule, task in named:
            if named.count((rule, task)) > 1:
                raise ValueError(f"rules: {rule} stands twice for {task}; keep one of them")
        return self


SPEC = StageSpec(
    name="gate_bundle",
    makes="decision",
    config=BundleGateConfig,
    inputs={"candidate": Input(("eval-report",)), "base": Input(("eval-report",))},
    code_version=2,
    exit_code=exit_code,
)
