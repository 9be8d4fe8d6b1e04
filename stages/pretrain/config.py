"""What the pretrain stage can be told: the model, the batch, the optimiser, when it saves."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from artifacts.architecture import Architecture, Family
from artifacts.fields import Count
from artifacts.validation import sentences
from stages.engine.machines import Machines
from stages.engine.mesh import Layout
from stages.engine.settings import (
    NO_BF16,
    OptimizerConfig,
    Precision,
    ScheduleConfig,
    Section,
)
from stages.spec import Input, StageConfig, StageSpec

STATE = "state.json"
"""Of a rolling checkpoint: where the run stood, with the hashes of its other files."""


class ModelConfig(Section):
    """The decoder's shape; the vocabulary comes from the corpus."""

    family: Family = "llama"
    """llama, mistral, qwen2 (q/k/v biases) or qwen3 (q/k norms). Default llama."""
    hidden_size: Count = Field(gt=0)
    """Width of the residual stream, features."""
    layers: Count = Field(gt=0)
    """Number of decoder layers."""
    heads: Count = Field(gt=0)
    """Number of query heads."""
    kv_heads: Count | None = Field(default=None, gt=0)
    """Number of key/value heads; divides `heads`. Default: as many as `heads`."""
    head_dim: Count | None = Field(default=None, gt=0)
    """Features of one head, even. Default: hidden_size / heads."""
    intermediate_size: Count = Field(gt=0)
    """Width of the SwiGLU, features; about 8/3 of hidden_size is customary."""
    max_positions: Count | None = Field(default=None, gt=0)
    """Longest sequence the model declares, tokens. Default: batch.sequence_length."""
    rope_theta: float = Field(default=10000.0, gt=0)
    """Base of the rotary frequencies. Default 10000, right for contexts of some thousand tokens."""
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    """Added to the mean square in RMSNorm. Default 1e-6."""
    tied_head: bool = True
    """Whether the output head is the embedding. Default true: a small model's vocabulary would
    otherwise be most of its parameters."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the matrices at the start; o_proj and down_proj get it divided by
    sqrt(2 * layers). Default 0.02; narrow models take more (0.06 at a width of 128)."""
    embedding_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the embedding and an untied head at the start. Default 0.02."""

    @model_validator(mode="after")
    def _fits(self) -> "ModelConfig":
        if self.head_dim is None and self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is no multiple of heads {self.heads}; "
                "change one of them or state head_dim"
            )
        try:
            self.architecture(vocab_size=1, sequence_length=1)  # its checks are ours
        except ValidationError as error:
            raise ValueError(
                "; ".join(t.removeprefix("config: ") for t in sentences(error))
            ) from None
        return self

    def divided(self) -> dict[str, int]:
        """The sizes that tensor and pipeline parallelism divide."""
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads or self.heads,
            "intermediate_size": self.intermediate_size,
            "layers": self.layers,
        }

    def architecture(self, vocab_size: int, sequence_length: int) -> Architecture:
        """The full description, once the corpus has given the vocabulary."""
        return Architecture(
            family=self.family,
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.hidden_size // self.heads,
            intermediate_size=self.intermediate_size,
            max_positions=self.max_positions or sequence_length,
            rope_theta=self.rope_theta,
            rms_norm_eps=self.rms_norm_eps,
            tied_head=self.tied_head,
        )


class BatchConfig(Section):
    """One optimiser step's data. State `global_tokens` or `global_size`; the rest follows."""

    sequence_length: Count = Field(ge=2)
    """Tokens of one sequence."""
    global_tokens: Count | None = Field(default=None, gt=0)
    """Tokens of one optimiser step over all processes; a multiple of sequence_length."""
    global_size: Count | None = Field(default=None, gt=0)
    """Sequences of one optimiser step over all processes."""
    per_device_size: Count | None = Field(default=None, gt=0)
    """Sequences a process takes at once; what is missing to the global size is accumulated.
    Default: all of its share at once."""

    @model_validator(mode="after")
    def _one_size(self) -> "BatchConfig":
        if (self.global_tokens is None) == (self.global_size is None):
            raise ValueError("state exactly one of global_tokens and global_size")
        if self.global_tokens is not None and self.global_tokens % self.sequence_length:
            below = self.global_tokens // self.sequence_length * self.sequence_length
            above = below + self.sequence_length
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"global_tokens {self.global_tokens} is no multiple of sequence_length "
                f"{self.sequence_length}; {near} would be"
            )
        return self

    def sequences(self) -> int:
        """Sequences of one optimiser step over all processes."""
        if self.global_size is not None:
            return self.global_size
        assert self.global_tokens is not None
        return self.global_tokens // self.sequence_length


class ParallelConfig(Section):
    """Processes that train together: data x tensor x pipeline of them."""

    data: int = Field(default=1, gt=0, le=1024)
    """Processes that each take a share of every batch. Default 1."""
    tensor: int = Field(default=1, gt=0, le=1024)
    """Processes that each hold a slice of every matrix; divides heads, kv_heads, intermediate_size
    and vocabulary. Default 1."""
    pipeline: int = Field(default=1, gt=0, le=1024)
    """Stages that the layers are divided into, each with a process of its own. A step should have
    several times as many micro-batches (batch.per_device_size). Default 1."""
    zero: Literal[0, 1] = 0
    """1: the data processes divide AdamW's state among themselves. Default 0: each holds all."""
    timeout_seconds: Count = Field(default=300, ge=30)
    """How late one process may be for another at a collective. Default 300: a graph's compilation
    and a checkpoint's writing must fit in. So long, too, do machines wait for each other."""
    nodes: int = Field(default=1, gt=0, le=1024)
    """Machines that the processes are divided over, each with as many. All run the same command,
    but for node_rank, and share the store's directory. Default 1."""
    node_rank: Count = Field(default=0, ge=0)
    """Which of the machines this one is, for --set pretrain.parallel.node_rank=1; machine 0 leads
    and writes. Default 0."""
    master: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+:[0-9]{1,5}$")
    """host:port of machine 0 as the others reach it, with a port that is free there; needed where
    nodes is more than 1."""

    @model_validator(mode="after")
    def _divides_something(self) -> "ParallelConfig":
        if self.zero and self.data == 1:
            raise ValueError("zero 1 divides AdamW's state over data processes, and data is 1")
        if self.node_rank >= self.nodes:
            raise ValueError(
                f"node_rank {self.node_rank} is none of the {self.nodes} nodes, which are counted "
                "from 0"
            )
        if self.layout.size % self.nodes:
            raise ValueError(
                f"{self.layout.size} processes (data x tensor x pipeline) do not divide over "
                f"{self.nodes} nodes; a multiple of {self.nodes} would"
            )
        if self.nodes > 1 and self.master is None:
            raise ValueError(f"master is missing; {self.nodes} nodes meet at its host:port")
        if self.master is not None and not 0 < int(self.master.rpartition(":")[2]) < 1 << 16:
            raise ValueError(f"master {self.master} has no port of 1 to 65535")
        return self

    @property
    def machines(self) -> Machines | None:
        """How the machines find each other; None if there is one."""
        if self.master is None or self.nodes == 1:
            return None
        return Machines(self.nodes, self.node_rank, self.master, self.timeout_seconds)

    @property
    def layout(self) -> Layout:
        """The same as the engine takes it."""
        return Layout(self.data, self.tensor, self.pipeline, self.zero)


class CheckpointConfig(Section):
    """Rolling checkpoints, from which a killed run goes on."""

    every: Count = Field(default=500, gt=0)
    """Optimiser steps between two. Default 500."""
    keep: Count = Field(default=5, gt=0)
    """How many of the last are kept while training. Default 5."""


class ValidationConfig(Section):
    """The loss on held-out text."""

    every: Count = Field(default=500, gt=0)
    """Optimiser steps between two; the start and the end are always measured. Default 500."""
    batches: Count = Field(default=8, gt=0)
    """How many global batches of the validation split are used, always the same, from its start;
    fewer if it holds fewer. Their loss at the whole split's tokens a byte is the checkpoint's
    bits_per_byte. Default 8."""


def _which_model(value: Any) -> str:
    return "function-initial" if isinstance(value, str) else "function-model"


class PretrainConfig(StageConfig):
    """Pretraining from random weights, or from those of a checkpoint."""

    model: Annotated[
        Annotated[Literal["initial"], Tag("function-initial")]
        | Annotated[ModelConfig, Tag("function-model")],
        Discriminator(_which_model),
    ]
    """The decoder's shape; or `initial`: the shape and the weights of the checkpoint that is given
    as input of that name, whose optimiser starts anew."""
    batch: BatchConfig
    """One optimiser step's data."""
    steps: Count = Field(gt=0)
    """Optimiser steps in all."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over time."""
    parallel: ParallelConfig = ParallelConfig()
    """Processes that train together."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Rolling checkpoints."""
    validation: ValidationConfig = ValidationConfig()
    """The loss on held-out text."""
    precision: Precision = "fp32"
    """Number format of the layers' matrix products; weights, their gradients, sums and all else
    stay float32. On CPU fp16 is slower than fp32, and bf16 is refused. Default fp32."""
    loss_scale: Annotated[float, Field(gt=0)] | Literal["dynamic"] = "dynamic"
    """With fp16 or bf16, what gradients are multiplied by so that small ones are not lost: a number
    that stays, or `dynamic`: from 65536, halved at an overflow, doubled after 1000 steps without
    one. A step that overflows is skipped. Default dynamic."""
    resume_from: str | None = None
    """A rolling checkpoint (`.../checkpoints/step-...`) of another run to go on from, optimiser and
    place in the data included, for example in another layout: its batch, seed and corpus must be
    the same. Default: from this run's own, or from the start."""
    recompute: bool = False
    """Whether only what goes into each layer is kept for the way back, and the layer computed again
    there: a third more arithmetic, the same numbers, the memory of one layer. The stages of a
    pipeline do so anyway. Default false."""
    max_nonfinite_steps: Count = Field(default=10, gt=0)
    """A step whose loss or gradient is not finite is skipped; so many in a row end the run.
    Default 10."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Draws the first weights and the order of the data. Default 0."""
    device: Literal["auto", "CPU", "GPU", "Ascend"] = "auto"
    """Where to train; auto takes an accelerator if there is one. Default auto."""

    @model_validator(mode="after")
    def _divides(self) -> "PretrainConfig":
        if self.precision == "fp32" and self.loss_scale != "dynamic":
            raise ValueError(
                f"loss_scale: is {self.loss_scale}; with precision fp32 nothing is scaled, "
                "leave it out"
            )
        if self.precision == "bf16" and self.device == "CPU":
            raise ValueError(f"precision: {NO_BF16}")
        total, processes = self.batch.sequences(), self.parallel.data
        size = self.batch.per_device_size
        if total % processes:
            raise ValueError(
                f"batch: {total} sequences a step do not divide over parallel.data {processes} "
                f"processes; {_multiples(total, processes)} would"
            )
        if size is not None and total % (processes * size):
            raise ValueError(
                f"batch: {total} sequences a step are no multiple of parallel.data {processes} x "
                f"per_device_size {size} = {processes * size}; "
                f"{_multiples(total, processes * size)} would be"
            )
        longest = self.model.max_positions if isinstance(self.model, ModelConfig) else None
        if longest is not None and longest < self.batch.sequence_length:
            raise ValueError(
                f"model.max_positions {longest} is less than batch.sequence_length "
                f"{self.batch.sequence_length}; leave it out or raise it"
            )
        if self.recompute and self.parallel.pipeline > 1:
            raise ValueError(
                f"recompute: is true; the stages of parallel.pipeline {self.parallel.pipeline} are "
                "computed again already, leave it out"
            )
        if isinstance(self.model, ModelConfig):
            problems = list(self.parallel.layout.misfits(**self.model.divided()))
            if problems:
                raise ValueError("\n".join(problems))
        return self

    def shape(self, vocab_size: int, initial: Architecture | None) -> Architecture:
        """The decoder's, with the corpus's vocabulary; or that of the model to start from."""
        if self.model == "initial":
            assert initial is not None, "looked at before"
            return initial
        return self.model.architecture(vocab_size, self.batch.sequence_length)

    @property
    def micro_size(self) -> int:
        """Sequences a process takes at once."""
        return self.batch.per_device_size or self.batch.sequences() // self.parallel.data

    @property
    def accumulation(self) -> int:
        """Micro-batches a process adds up for one step."""
        return self.batch.sequences() // (self.parallel.data * self.micro_size)

    def result_config(self) -> dict[str, Any]:
        """Where the processes run makes no difference to what they make."""
        places = {"nodes", "node_rank", "master"}
        return self.model_dump(mode="json", exclude={"parallel": places})

    def helps(self) -> bool:
        """Every machine but the first."""
        return self.parallel.node_rank > 0

    def source_files(self) -> list[Path]:
        """What says which bytes the run goes on from."""
        return [] if self.resume_from is None else [Path(self.resume_from) / STATE]

    def seeds(self) -> dict[str, int]:
        """The seed of weights and data order."""
        return {"weights_and_data_order": self.seed}


def _multiples(number: int, of: int) -> str:
    below = number // of * of
    return f"{below} or {below + of}" if below else f"{of}"


SPEC = StageSpec(
    name="pretrain",
    makes="checkpoint",
    config=PretrainConfig,
    inputs={
        "corpus": Input(("corpus",)),
        "initial": Input(("checkpoint", "hf-model"), required=False),
    },
    code_version=3,
    trains=True,
    resumes=True,
)
