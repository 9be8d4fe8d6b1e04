"""Train a model from scratch: `python -m stages.pretrain REQUEST.json`."""

from stages.pretrain.config import SPEC
from stages.pretrain.run import run
from stages.process import main

main(SPEC, run)
