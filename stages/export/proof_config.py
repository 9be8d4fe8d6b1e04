"""What can be said about a bundle's proof."""

from pydantic import Field, field_validator

from artifacts.fields import Count
from artifacts.onnx_kinds import Operators, Precision
from stages.export.kinds import MAX_ERROR, MAX_MEAN_KL, EngineName, uses_microsoft
from stages.spec import Input, StageConfig, StageSpec


class ProofConfig(StageConfig):
    """Where, how far and how exactly a bundle must agree with the model it was made from."""

    engines: tuple[EngineName, ...] | None = None
    """Where the graph is proved: onnxruntime always, and reference (ONNX's evaluator), openvino
    (if installed). By default onnxruntime, and reference unless it lacks the operators."""
    longest: Count | None = Field(None, ge=2)
    """Longest sequence of the proof, past included, in tokens. By default the model's longest, at
    most 512: longer ones take longer and run the same operators."""
    threshold: float | None = Field(None, gt=0)
    """Largest error of a logit, in units of the logits' root mean square (1 at least). By default
    1e-5 in fp32, which float32 allows with some room, 2e-2 in fp16, 0.5 in int8, 4 in int4; the
    last two are held to a mean divergence of 0.02 and 0.3 nats as well."""
    seed: int = Field(0, ge=0)
    """Draws the token ids of the proof. Any would do; fixed, so that a proof can be repeated."""

    @field_validator("engines")
    @classmethod
    def _with_onnxruntime(cls, value: tuple[EngineName, ...] | None) -> object:
        if value is not None and "onnxruntime" not in value:
            raise ValueError(f"names {', '.join(value) or 'none'}; onnxruntime must be among them")
        return value

    def engines_for(self, operators: Operators, precision: Precision) -> tuple[EngineName, ...]:
        """The engines for this kind of graph, onnxruntime first."""
        if self.engines is not None:
            return tuple(sorted(set(self.engines), key=lambda name: name != "onnxruntime"))
        if uses_microsoft(operators, precision):
            return ("onnxruntime",)
        return ("onnxruntime", "reference")

    def unable(self, operators: Operators, precision: Precision) -> str | None:
        """A sentence if an engine that is named cannot run this kind of graph."""
        if "reference" in (self.engines or ()) and uses_microsoft(operators, precision):
            return (
                f"prove.engines: names reference, which lacks com.microsoft's operators "
                f"(operators: {operators}, precision: {precision})"
            )
        return None

    def max_error(self, precision: Precision) -> float:
        """Largest error of a logit that passes."""
        return MAX_ERROR[precision] if self.threshold is None else self.threshold

    def max_mean_kl(self, precision: Precision) -> float | None:
        """Largest mean divergence that passes, nats; None if it is not asked."""
        return MAX_MEAN_KL.get(precision)

    def seeds(self) -> dict[str, int]:
        """The seed of the proof's tokens."""
        return {"seed": self.seed}


SPEC = StageSpec(
    name="prove",
    makes="proof",
    config=ProofConfig,
    inputs={"bundle": Input(("onnx-bundle",)), "model": Input(("hf-model",))},
    code_version=2,
)
