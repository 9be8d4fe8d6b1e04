"""Make a corpus: `python -m stages.corpus REQUEST.json`."""

from stages.corpus.config import SPEC
from stages.corpus.run import run
from stages.process import main

main(SPEC, run)
