"""python -m stages.merge REQUEST.json"""

from stages.merge.config import SPEC
from stages.merge.run import run
from stages.process import main

main(SPEC, run)
