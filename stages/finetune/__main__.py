"""python -m stages.finetune REQUEST.json; the request says which of the two stages it is."""

from stages.finetune.config import FULL, SPEC
from stages.finetune.run import run, run_full
from stages.process import main_among

main_among((SPEC, run), (FULL, run_full))
