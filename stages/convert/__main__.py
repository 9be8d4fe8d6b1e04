"""python -m stages.convert REQUEST.json"""

from stages.convert.config import SPEC
from stages.convert.run import run
from stages.process import main

main(SPEC, run)
