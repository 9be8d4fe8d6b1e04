"""What the documentation says of faults is what the tests inject and see."""

from tests.command import ROOT
from tests.reliability.table import faults


def test_each_fault_stands_in_the_documentation() -> None:
    page = (ROOT / "docs" / "reliability-faults.md").read_text("utf-8")
    missing = [fault.row() for fault in faults() if fault.row() not in page]
    assert missing == [], "`python -m tests.reliability.table` prints the tables"
    assert len({fault.injected for fault in faults()}) == len(faults()) > 30
