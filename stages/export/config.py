"""What can be said about an export."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from artifacts.adapter import BASE, CONFIG, TENSORS
from artifacts.errors import BadInput
from artifacts.onnx_kinds import Operators, Precision
from stages.export.kinds import Int4Block, Layout
from stages.spec import Input, StageConfig, StageSpec, when_set

AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ExportConfig(StageConfig):
    """How a Hugging Face directory becomes an ONNX bundle."""

    operators: Operators = "plain"
    """plain: operators of opset 18, which every engine runs. opset23: ONNX's own attention.
    microsoft: onnxruntime's GroupQueryAttention, whose cache can be one buffer; for onnxruntime
    only."""
    precision: Precision = "fp32"
    """How weights are stored: fp32, fp16, int8 (a scale an output), or int4 (a scale a block;
    onnxruntime only). Activations are float32. Below fp32, gate_bundle.rules says what the
    rounding may cost."""
    int4_block: Int4Block = 32
    """Weights of a row that share a scale in int4. Blocks of 64 decode a quarter faster than
    blocks of 32, those of 128 half again as fast; they round a tenth and a fifth worse."""
    layout: Layout = "flat"
    """flat: all files in one directory, for onnxruntime-genai, optimum and lm-eval. onnx_folder:
    graph and data in `onnx/`, where transformers.js looks; onnxruntime-genai reads both."""
    adapters: dict[AdapterName, Path] = Field(default_factory=dict)
    """LoRA adapters that stay apart, name: directory in PEFT's form. They are written as
    `adapters/NAME.onnx_adapter`, to be chosen at each request. One that says which model it belongs
    to must belong to this one. By default none."""
    force_base: bool = when_set(False)
    """Whether an adapter may say that it belongs to another model. Default false."""
    licence: str | None = None
    """Licence of the model, such as Apache-2.0; goes into graph and release. None: unsaid."""

    @model_validator(mode="after")
    def _blocks_are_of_int4(self) -> "ExportConfig":
        if self.int4_block != 32 and self.precision != "int4":
            raise ValueError(
                f"int4_block is {self.int4_block} and precision is {self.precision}, which has no "
                "blocks; precision int4 would be right"
            )
        return self

    def source_files(self) -> list[Path]:
        """The adapters' files."""
        files = [path / name for path in self.adapters.values() for name in (CONFIG, TENSORS)]
        missing = [f"export.adapters: {path} is missing" for path in files if not path.is_file()]
        if missing:
            raise BadInput(*missing)
        bound = [path / BASE for path in self.adapters.values() if (path / BASE).is_file()]
        return files + bound


SPEC = StageSpec(
    name="export",
    makes="onnx-bundle",
    config=ExportConfig,
    inputs={"model": Input(("hf-model",))},
    code_version=3,
)
