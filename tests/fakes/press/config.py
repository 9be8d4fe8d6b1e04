from stages.spec import Input, StageConfig, StageSpec


class PressConfig(StageConfig):
    times: int = 2
    """How often the text is repeated."""


SPEC = StageSpec(
    name="press",
    makes="checkpoint",
    config=PressConfig,
    inputs={"corpus": Input(("corpus",))},
    code_version=1,
)
