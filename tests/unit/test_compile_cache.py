"""No graph of another run is used: MindSpore's own cache does not see that a number has changed."""

import os
import subprocess
import sys
from pathlib import Path

RUN = """
import sys
from stages.engine import runtime
import numpy as np
from mindspore import Tensor
from stages.engine.cells import Normalize
runtime.start("CPU")
x = Tensor(np.ones((2, 4), np.float32))
print("mean", float(Normalize(float(sys.argv[1]))(x)[0].asnumpy().mean()))
"""


def mean(eps: float, cache: Path) -> float:
    """Of a row of ones, normalized in a process of its own with the cache asked for."""
    program = cache.parent / "run.py"
    program.write_text(RUN)
    environment = {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(cache)}
    found = subprocess.run(
        [sys.executable, program, str(eps)],
        env=os.environ | environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout.split("mean ")[1])


def test_a_changed_number_takes_effect_although_the_cache_is_asked_for(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    assert abs(mean(0.0, cache) - 1.0) < 1e-6
    assert abs(mean(3.0, cache) - 0.5) < 1e-6
    assert not list(cache.iterdir())
