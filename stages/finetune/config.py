"""What the fine-tuning stage can be told: data, template, adapter, and how long to train."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from artifacts.errors import BadInput
from artifacts.fields import Count
from artifacts.lora_spec import PROJECTIONS, LoraSpec, Projection, problem_with_pattern
from artifacts.patterns import files_fitting
from stages.engine.settings import OptimizerConfig, ScheduleConfig, Section
from stages.finetune.examples import TURNS, Format, read_examples
from stages.spec import Input, StageConfig, StageSpec, when_set


class Files(Section):
    """Instructions in local files."""

    files: tuple[str, ...] = Field(min_length=1)
    """JSON or JSON-lines files, or globs. Paths are relative to the current directory."""
    format: Format
    """alpaca: {instruction, input, output}. messages: {messages: [{role, content}, ...]}. sharegpt:
    {conversations: [{from, value}, ...]}. completion: {prompt, completion}."""

    def paths(self) -> list[Path]:
        """The files, each once, in the order of the patterns and by name within one.

        Raises BadInput naming every pattern that fits no file.
        """
        found: dict[Path, None] = {}
        problems = []
        for index, pattern in enumerate(self.files):
            fitting = files_fitting(pattern)
            if not fitting:
                problems.append(f"finetune.data.files.{index}: {pattern!r} fits no file")
            found |= dict.fromkeys(fitting)
        if problems:
            raise BadInput(*problems)
        return list(found)


def _which_data(value: Any) -> str:
    return "function-world" if isinstance(value, str) else "function-files"


# Tags are part of the path in pydantic's findings, except where `artifacts.validation` takes them
# out: those that begin with function-.
Data = Annotated[
    Annotated[Literal["world"], Tag("function-world")] | Annotated[Files, Tag("function-files")],
    Discriminator(_which_data),
]


Rank = Annotated[int, Field(le=1 << 16)]
"""Wider than any linear would be no low rank."""


def _which_targets(value: Any) -> str:
    return "function-pattern" if isinstance(value, str) else "function-names"


class LoraConfig(Section):
    """The adapter: W + alpha / rank * B @ A on some linears, W frozen."""

    rank: Rank = Field(8, ge=1)
    """Inner width of every pair A [rank, in], B [out, rank]."""
    alpha: float = Field(16.0, gt=0)
    """Scale of the addition, alpha / rank. Much more than twice the rank makes training unsteady
    at the learning rates that suit LoRA."""
    targets: Annotated[
        Annotated[str, Tag("function-pattern")]
        | Annotated[tuple[Projection, ...], Field(min_length=1), Tag("function-names")],
        Discriminator(_which_targets),
    ] = PROJECTIONS
    """Linears that get a pair, in every layer; all seven by default. Or one regular expression
    that fits whole names, such as `.*layers\\.(2|3)\\..*_proj`."""
    rank_pattern: dict[str, Annotated[Rank, Field(ge=1)]] = when_set({})
    """Other ranks for some linears: patterns of the end of a name -> rank, as peft reads them."""
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] = when_set({})
    """Other alphas for some linears, in the same way."""
    rslora: bool = when_set(False)
    """Whether the scale is alpha / sqrt(rank), which keeps it for large ranks. Default false."""

    @field_validator("targets")
    @classmethod
    def _each_once_in_order(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if isinstance(value, str):
            if why := problem_with_pattern(value):
                raise ValueError(f"is {why}; a regular expression, or a list of names, would do")
            return value
        if len(set(value)) != len(value):
            raise ValueError("names one twice; once would do")
        return tuple(name for name in PROJECTIONS if name in value)

    @field_validator("rank_pattern", "alpha_pattern")
    @classmethod
    def _patterns(cls, value: dict[str, Any]) -> dict[str, Any]:
        for pattern in value:
            if why := problem_with_pattern(pattern):
                raise ValueError(f"has {pattern!r}, which is {why}")
        return value

    def spec(self) -> LoraSpec:
        """The same as peft's settings."""
        return LoraSpec(
            self.rank,
            self.alpha,
            self.targets,
            rank_pattern=self.rank_pattern,
            alpha_pattern=self.alpha_pattern,
            rslora=self.rslora,
        )


class LoraOptimizerConfig(OptimizerConfig):
    """AdamW as is customary for LoRA: a higher rate than for all weights, and no decay."""

    learning_rate: float = Field(2e-4, gt=0, lt=1)
    """Peak of the schedule. Tiny models take 2e-3; 5e-3 with alpha 32 collapses there."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of the squared gradient's running mean."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled decay, times the learning rate, on A and B."""


class LoraScheduleConfig(ScheduleConfig):
    """Linear warm-up, then a half cosine down to a floor; counted in optimiser steps."""

    warmup_steps: Count = Field(10, ge=0)
    """Optimiser steps until the peak is reached."""
    floor_ratio: float = Field(0.0, ge=0, le=1)
    """The last step's learning rate, as a share of the peak; 1 keeps the rate constant."""


class BatchConfig(Section):
    """How many examples make one optimiser step."""

    global_size: Count = Field(16, ge=1)
    """Examples a step."""
    per_device_size: Count | None = Field(None, ge=1)
    """Examples computed at once, to save memory; divides `global_size`, and what is missing to it
    is accumulated. By default all of them."""

    @model_validator(mode="after")
    def _divides(self) -> "BatchConfig":
        total, size = self.global_size, self.per_device_size
        if size and total % size:
            raise ValueError(
                f"per_device_size {size} does not divide global_size {total}; "
                f"{_divisor_below(total, size)} would"
            )
        return self


class CheckpointConfig(Section):
    """The state that a killed run goes on from; the result does not depend on it."""

    every: Count = Field(50, ge=1)
    """Optimiser steps between two."""


class ParallelConfig(Section):
    """Processes that train together, on one machine."""

    data: int = Field(default=1, ge=1, le=1024)
    """Processes that each take a share of every batch. Default 1."""
    timeout_seconds: Count = Field(default=300, ge=30)
    """How late one process may be for another. Default 300."""


class FinetuneConfig(StageConfig):
    """Supervised fine-tuning; loss is taken on answers only."""

    data: Data
    """`world`: the questions about the corpus's generated world. Else {files, format}."""
    template: Literal["question", "alpaca", "chatml", "plain"]
    """question: `Question: ...` / `Answer: ...`, or its Chinese like for a Chinese question, as
    the continuation tasks ask. alpaca: task, input and answer under headings. chatml: turns
    between <|im_start|> and <|im_end|>, for conversations. plain: prompt and completion as they
    are, nothing around them."""
    method: Literal["lora", "full", "last_layers"] = when_set("lora")
    """What is trained: an adapter beside the frozen base, all weights, or those of the last layers.
    The latter two make a whole model instead of an adapter, and want a tenth of LoRA's learning
    rate. Default lora."""
    last_layers: Count | None = when_set(None, ge=1)
    """How many decoder layers, counted from the end, method last_layers trains; embedding, head and
    norm stay as they are."""
    lora: LoraConfig = LoraConfig.model_validate({})
    """The adapter's shape."""
    optimizer: LoraOptimizerConfig = LoraOptimizerConfig.model_validate({})
    """AdamW's settings."""
    schedule: LoraScheduleConfig = LoraScheduleConfig.model_validate({})
    """The learning rate over the steps."""
    batch: BatchConfig = BatchConfig.model_validate({})
    """Examples a step."""
    steps: Count | None = Field(None, ge=1)
    """Optimiser steps. State either this or `epochs`."""
    epochs: float | None = Field(None, gt=0, le=1_000_000)
    """Passes over the kept examples, rounded up to whole steps. 2 or 3 are customary."""
    max_length: Count = Field(256, ge=8)
    """Longest example in tokens, its end included; longer ones are dropped and counted, not cut."""
    packing: bool = when_set(False)
    """Whether several examples share a row of up to max_length tokens. They do not see each other;
    a step then holds global_size rows, hence more examples. Default false."""
    held_out: float = when_set(0.0, ge=0, lt=1)
    """Share of the examples that is not learned from: at the end, base and tuned model are compared
    on it, by loss and by exact match of the greedy answer. Equal examples stay on one side.
    Default 0."""
    parallel: ParallelConfig = when_set(ParallelConfig())
    """Processes that train together."""
    checkpoint: CheckpointConfig = CheckpointConfig.model_validate({})
    """How often the state is saved."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of the adapter's first values and of the order of examples."""
    device: Literal["auto", "CPU", "GPU", "Ascend"] = "auto"
    """Where MindSpore computes; auto takes an accelerator if there is one."""

    @model_validator(mode="after")
    def _consistent(self) -> "FinetuneConfig":
        problems = []
        if (self.steps is None) == (self.epochs is None):
            found = "neither" if self.steps is None else "both"
            problems.append(f"steps and epochs: {found} is set; one of them would be right")
        if isinstance(self.data, Files) and self.data.format in TURNS and self.template != "chatml":
            problems.append(f"template: is '{self.template}'; {self.data.format} need chatml")
        if self.template == "plain" and not (
            isinstance(self.data, Files) and self.data.format == "completion"
        ):
            problems.append("template: is 'plain'; only prompt and completion say all themselves")
        if (self.method == "last_layers") != (self.last_layers is not None):
            problems.append("last_layers: goes with method last_layers, and only with it")
        if self.method != "lora" and self.lora != LoraConfig.model_validate({}):
            problems.append(f"lora: is set, but method is '{self.method}'; leave one of them out")
        if self.batch.global_size % self.parallel.data:
            problems.append(
                f"batch.global_size {self.batch.global_size} does not divide over parallel.data "
                f"{self.parallel.data} processes"
            )
        elif self.batch.per_device_size and (
            self.batch.global_size % (self.parallel.data * self.batch.per_device_size)
        ):
            problems.append(
                f"batch.global_size {self.batch.global_size} is no multiple of parallel.data "
                f"{self.parallel.data} x per_device_size {self.batch.per_device_size}"
            )
        if problems:
            raise ValueError(". ".join(problems))
        return self

    def source_files(self) -> list[Path]:
        """The instruction files. Raises BadInput if a pattern fits none."""
        return self.data.paths() if isinstance(self.data, Files) else []

    def look_into_sources(self) -> None:
        """Every example, and that one at least has an answer."""
        if isinstance(self.data, Files):
            from stages.finetune.dataset import dropped_by_text, none_left  # tokenizers' import

            examples = read_examples(self.data.paths(), self.data.format)
            dropped = dropped_by_text(examples)
            if sum(map(len, dropped.values())) == len(examples):
                raise BadInput(none_left(dropped))

    def seeds(self) -> dict[str, int]:
        """One seed for the adapter's start and the order of examples."""
        return {"finetune": self.seed}

    def step_count(self, examples: int) -> int:
        """Optimiser steps for this many kept examples."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None, "the validator asks for one of the two"
        return max(1, -int(-self.epochs * examples // self.batch.global_size))


def _divisor_below(whole: int, bound: int) -> int:
    return next(size for size in range(min(bound, whole), 0, -1) if whole % size == 0)


SPEC = StageSpec(
    name="finetune",
    makes="adapter",
    config=FinetuneConfig,
    inputs={
        "model": Input(("hf-model", "checkpoint")),
        "corpus": Input(("corpus",), required=False),
        "adapter": Input(("adapter",), required=False),
    },
    code_version=3,
    trains=True,
    resumes=True,
)

FULL = StageSpec(
    name="finetune-full",
    makes="hf-model",
    config=FinetuneConfig,
    inputs={role: SPEC.inputs[role] for role in ("model", "corpus")},
    code_version=5,
    trains=True,
    resumes=True,
)
"""The same where method is not lora: what comes out is a model."""
