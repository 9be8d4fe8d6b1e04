"""A chain of the fake stages: grow, press, judge, and press again as `ship`."""

from pathlib import Path
from typing import Any

from flows.chain import Step, Work
from stages.spec import StageConfig
from tests.fakes.grow.config import SPEC as GROW
from tests.fakes.judge.config import SPEC as JUDGE
from tests.fakes.press.config import SPEC as PRESS

STEPS = (
    Step("grow", GROW),
    Step("press", PRESS, {"corpus": "grow"}),
    Step("judge", JUDGE, {"pressed": "press", "raw": "grow"}),
    Step("ship", PRESS, {"corpus": "grow"}),
)


def fake_work(store: Path, **sections: Any) -> Work:
    configs: dict[str, StageConfig] = {
        spec.name: spec.config.model_validate(sections.get(spec.name, {}))
        for spec in (GROW, PRESS, JUDGE)
    }
    return Work("fake", STEPS, configs, store)
