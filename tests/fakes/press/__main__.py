from stages.process import main
from tests.fakes.press.config import SPEC
from tests.fakes.press.run import run

main(SPEC, run)
