from stages.process import main
from tests.fakes.grow.config import SPEC
from tests.fakes.grow.run import run

main(SPEC, run)
