"""What can be said about an export."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from artifacts.adapter import CONFIG, TENSORS
from artifacts.errors import BadInput
from stages.export.kinds import (
    MAX_ERROR,
    MAX_MEAN_KL,
    EngineName,
    Layout,
    Operators,
    Precision,
    uses_microsoft,
)
from stages.spec import Input, StageConfig, StageSpec

AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ExportConfig(StageConfig):
    """How a Hugging Face directory becomes an ONNX bundle, and what its proof covers."""

    operators: Operators = "plain"
    """plain: operators of opset 18, which every engine runs. opset23: ONNX's own attention.
    microsoft: onnxruntime's GroupQueryAttention, whose cache can be one buffer; for onnxruntime
    only."""
    precision: Precision = "fp32"
    """How weights are stored: fp32, fp16, int8 (a scale an output), or int4 (a scale for 32
    weights; onnxruntime only). Activations are float32."""
    layout: Layout = "flat"
    """flat: all files in one directory, for onnxruntime-genai, optimum and lm-eval. onnx_folder:
    graph and data in `onnx/`, where transformers.js looks; onnxruntime-genai reads both."""
    adapters: dict[AdapterName, Path] = Field(default_factory=dict)
    """LoRA adapters that stay apart, name: directory in PEFT's form. They are written as
    `adapters/NAME.onnx_adapter`, to be chosen at each request. By default none."""
    engines: tuple[EngineName, ...] | None = None
    """Where the graph is proved: onnxruntime always, and reference (ONNX's evaluator), openvino
    (if installed). By default onnxruntime, and reference unless it lacks the operators."""
    longest: int | None = Field(None, ge=2)
    """Longest sequence of the proof, past included, in tokens. By default the model's longest, at
    most 512: longer ones take longer and run the same operators."""
    threshold: float | None = Field(None, gt=0)
    """Largest error of a logit, in units of the logits' root mean square (1 at least). By default
    1e-5 in fp32, which float32 allows with some room, 2e-2 in fp16, 0.5 in int8, 4 in int4; the
    last two are held to a mean divergence of 0.02 and 0.3 nats as well."""
    seed: int = Field(0, ge=0)
    """Draws the token ids of the proof. Any would do; fixed, so that a proof can be repeated."""
    licence: str | None = None
    """Licence of the model, such as Apache-2.0; goes into graph and release. None: unsaid."""

    @model_validator(mode="after")
    def _consistent(self) -> "ExportConfig":
        named = self.engines or ()
        if self.engines is not None and "onnxruntime" not in named:
            raise ValueError(f"engines is {list(named)}; onnxruntime must be among them")
        if "reference" in named and uses_microsoft(self.operators, self.precision):
            raise ValueError(
                f"engines names reference, which lacks com.microsoft's operators "
                f"(operators: {self.operators}, precision: {self.precision})"
            )
        return self

    @property
    def proved_in(self) -> tuple[EngineName, ...]:
        """The engines of the proof, onnxruntime first."""
        if self.engines is not None:
            return tuple(sorted(set(self.engines), key=lambda name: name != "onnxruntime"))
        if uses_microsoft(self.operators, self.precision):
            return ("onnxruntime",)
        return ("onnxruntime", "reference")

    @property
    def max_error(self) -> float:
        """Largest error of a logit that passes."""
        return MAX_ERROR[self.precision] if self.threshold is None else self.threshold

    @property
    def max_mean_kl(self) -> float | None:
        """Largest mean divergence that passes; None if it is not asked."""
        return MAX_MEAN_KL.get(self.precision)

    def source_files(self) -> list[Path]:
        """The adapters' files."""
        files = [path / name for path in self.adapters.values() for name in (CONFIG, TENSORS)]
        missing = [f"export.adapters: {path} is missing" for path in files if not path.is_file()]
        if missing:
            raise BadInput(*missing)
        return files

    def seeds(self) -> dict[str, int]:
        """The seed of the proof's tokens."""
        return {"seed": self.seed}


SPEC = StageSpec(
    name="export",
    makes="onnx-bundle",
    config=ExportConfig,
    inputs={"model": Input(("hf-model",))},
    code_version=2,
)
