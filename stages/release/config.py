"""A release has nothing to choose: it is what has been approved and proved, or it is refused."""

from stages.spec import Input, StageConfig, StageSpec


class ReleaseConfig(StageConfig):
    """Empty on purpose."""


SPEC = StageSpec(
    name="release",
    makes="release",
    config=ReleaseConfig,
    inputs={
        "decision": Input(("decision",)),
        "bundle_decision": Input(("decision",)),
        "bundle": Input(("onnx-bundle",)),
        "proof": Input(("proof",)),
        "model": Input(("hf-model",)),
        "candidate": Input(("eval-report",)),
        "bundle_scores": Input(("eval-report",)),
    },
    code_version=2,
)
