"""`python -m stages.evaluate REQUEST.json` scores one model."""

from stages.evaluate.config import SPEC
from stages.evaluate.run import run
from stages.process import main

main(SPEC, run)
