"""`python -m stages.gate REQUEST.json`: judge a model by its eval-reports. Exit 3: rejected."""

from stages.gate.config import SPEC
from stages.gate.run import run
from stages.process import main

main(SPEC, run)
