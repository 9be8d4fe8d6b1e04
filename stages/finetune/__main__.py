"""python -m stages.finetune REQUEST.json; the request says which of the two stages it is."""

import sys
from pathlib import Path

from artifacts.errors import MindCycleError
from stages.finetune.config import FULL, SPEC
from stages.finetune.run import run, run_full
from stages.process import main, read_request


def _wants_model() -> bool:
    try:
        return read_request(Path(sys.argv[1])).stage == FULL.name
    except (IndexError, MindCycleError):
        return False  # `main` says what is wrong with it


if _wants_model():
    main(FULL, run_full)
main(SPEC, run)
