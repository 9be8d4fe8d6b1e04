"""python -m stages.adopting REQUEST.json"""

from stages.adopting.config import SPEC
from stages.adopting.run import run
from stages.process import main

main(SPEC, run)
