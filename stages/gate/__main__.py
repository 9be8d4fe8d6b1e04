"""`python -m stages.gate REQUEST.json`: judge a model, or a bundle, by its eval-reports; the
request says which. Exit 3: rejected."""

from stages.gate.bundle import run as run_bundle
from stages.gate.bundle_config import SPEC as BUNDLE
from stages.gate.config import SPEC
from stages.gate.run import run
from stages.process import main_among

main_among((SPEC, run), (BUNDLE, run_bundle))
