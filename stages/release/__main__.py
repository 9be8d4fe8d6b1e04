"""python -m stages.release REQUEST.json"""

from stages.process import main
from stages.release.config import SPEC
from stages.release.run import run

main(SPEC, run)
