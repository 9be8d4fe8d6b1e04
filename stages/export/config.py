"""What can be said about an export."""

from pydantic import Field

from stages.spec import Input, StageConfig, StageSpec


class ExportConfig(StageConfig):
    """How a Hugging Face directory becomes an ONNX bundle, and what its proof covers."""

    longest: int | None = Field(None, ge=2)
    """Longest sequence of the proof, past included, in tokens. By default the model's longest, at
    most 512: longer ones take longer and run the same operators."""
    threshold: float = Field(1e-5, gt=0)
    """Largest error of a logit, in units of the logits' root mean square (1 at least). 1e-5 is what
    float32 allows with some room; a wrong graph is off by 0.01 and more."""
    seed: int = Field(0, ge=0)
    """Draws the token ids of the proof. Any would do; fixed, so that a proof can be repeated."""
    licence: str | None = None
    """Licence of the model, such as Apache-2.0; goes into graph and release. None: unsaid."""

    def seeds(self) -> dict[str, int]:
        """The seed of the proof's tokens."""
        return {"seed": self.seed}


SPEC = StageSpec(
    name="export",
    makes="onnx-bundle",
    config=ExportConfig,
    inputs={"model": Input(("hf-model",))},
    code_version=1,
)
