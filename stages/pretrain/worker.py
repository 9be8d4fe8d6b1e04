"""One rank of a parallel run; started by `stages.pretrain.run`, not by people.

`python -m stages.pretrain.worker JOB`, JOB being JSON: config, corpus, work, resume_from, initial.
"""

# First: it sets what MindSpore reads when it is imported.
from stages.engine import runtime  # isort: skip

import json
import os
import sys
import traceback
from pathlib import Path

from artifacts.errors import MindCycleError
from stages.engine import parallel
from stages.engine.precision import check_device
from stages.pretrain.config import PretrainConfig
from stages.pretrain.rolling import CHECKPOINTS, Rolling
from stages.pretrain.train import train
from stages.process import Stopped


def work(text: str) -> int:
    """Join the others and train; returns the exit code."""
    job = json.loads(text)
    config = PretrainConfig.model_validate(job["config"])
    directory = Path(job["work"])
    try:
        # Before joining: afterwards MindSpore refuses to set a device.
        check_device(config.precision, runtime.start(config.device, config.seed))
        group = parallel.join(config.parallel.layout.size)
        latest, _ = Rolling(directory / CHECKPOINTS, config.checkpoint.keep).latest()
        found = latest.state.step if latest else 0
        if found != job["resume_from"]:
            raise RuntimeError(f"found a checkpoint at step {found}, not {job['resume_from']}")
        initial = Path(job["initial"]) if job["initial"] else None
        train(config, Path(job["corpus"]), directory, latest, group, initial)
    except Stopped as stop:
        return 128 + stop.signal_number
    except MindCycleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = work(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # MindSpore's worker threads can hang an ordinary interpreter exit
