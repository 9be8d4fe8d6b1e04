"""python -m stages.importing REQUEST.json"""

from stages.importing.config import SPEC
from stages.importing.run import run
from stages.process import main

main(SPEC, run)
