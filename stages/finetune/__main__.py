"""`python -m stages.finetune REQUEST.json`: train a LoRA adapter on instructions."""

from stages.finetune.config import SPEC
from stages.finetune.run import run
from stages.process import main

main(SPEC, run)
