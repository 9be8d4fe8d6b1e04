from stages.process import main
from tests.fakes.judge.config import SPEC
from tests.fakes.judge.run import run

main(SPEC, run)
