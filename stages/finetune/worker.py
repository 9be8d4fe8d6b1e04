"""One rank of a parallel run; started by `stages.finetune.run`, not by people.

`python -m stages.finetune.worker JOB`, JOB being JSON: config, inputs, work, resume_from. The first
rank leaves its last state in `work`, for whoever started it.
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
from stages.finetune.config import FinetuneConfig
from stages.finetune.prepare import prepare
from stages.finetune.resume import load_state, save_state
from stages.finetune.training import train
from stages.process import Stopped


def work(text: str) -> int:
    """Join the others and train; returns the exit code."""
    job = json.loads(text)
    config = FinetuneConfig.model_validate(job["config"])
    directory = Path(job["work"])
    try:
        # Before joining: afterwards MindSpore refuses to set a device.
        runtime.start(config.device, config.seed)
        group = parallel.join(config.parallel.data)
        found = load_state(directory)
        if (found.steps if found else 0) != job["resume_from"]:
            raise RuntimeError(f"found another state than that of step {job['resume_from']}")
        made = prepare(config, {role: Path(path) for role, path in job["inputs"].items()})
        end = train(made.model, config, made.batches, made.steps, directory, made.start, group)
        if group.rank == 0:
            save_state(directory, end)
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
