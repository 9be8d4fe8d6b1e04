"""python -m stages.export REQUEST.json; the request says whether to export or to prove."""

from stages.export.config import SPEC
from stages.export.proof import run as prove
from stages.export.proof_config import SPEC as PROVE
from stages.export.run import run
from stages.process import main_among

main_among((SPEC, run), (PROVE, prove))
