"""python -m stages.export REQUEST.json"""

from stages.export.config import SPEC
from stages.export.run import run
from stages.process import main

main(SPEC, run)
