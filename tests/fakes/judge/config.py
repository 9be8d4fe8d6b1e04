from artifacts.errors import REJECTED
from stages.spec import Input, StageConfig, StageSpec


class JudgeConfig(StageConfig):
    floor: int = 1
    """Letters needed."""
    approval: bool = False

    def needs_approval(self) -> bool:
        return self.approval


SPEC = StageSpec(
    name="judge",
    makes="decision",
    config=JudgeConfig,
    inputs={"pressed": Input(("checkpoint",)), "raw": Input(("corpus",), required=False)},
    code_version=1,
    exit_code=lambda manifest: 0 if manifest.headline["outcome"] == "approved" else REJECTED,
)
