"""`mindcycle report` and `lineage`: one file with all that is known, and nothing that runs."""

import re

import pytest

from artifacts.lineage import ancestors
from artifacts.manifest import read_manifest, write_manifest
from flows.chain import run_chain
from flows.report import report_page, run_yaml
from tests.command import ROOT, mindcycle
from tests.fakes.chain import fake_work


@pytest.fixture(autouse=True)
def _importable_fakes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def decided(store, **sections):
    return run_chain(fake_work(store, **sections), lambda call: call.run(lambda line: None))


def test_the_whole_chain_is_in_one_file_that_fetches_and_runs_nothing(tmp_path):
    source = tmp_path / "seed.txt"
    source.write_text("wheat")
    outcomes = decided(tmp_path / "store", grow={"source": str(source)}).outcomes
    judge, press = outcomes["judge"], outcomes["press"]
    # A stage's page is text, whatever stands in it.
    hostile = "# Page\n<script>alert(1)</script> ![x](http://elsewhere/x.png) [y](javascript:z)\n"
    (judge.path / "decision.md").write_text(hostile)
    to = tmp_path / "report.html"
    ran = mindcycle("report", judge.manifest.digest[:12], "--store", tmp_path / "store", "--to", to)
    assert (ran.returncode, ran.stdout) == (0, f"wrote {to}\n")
    page = to.read_text()
    for said in [
        judge.manifest.digest,
        press.manifest.digest,
        str(source),
        judge.manifest.packages["python"],
        judge.manifest.host["commit"],
        "approved",
        "<h1>Page</h1>",
    ]:
        assert said in page
    assert not re.search(r"<script|<img[^>]+src=\"(?!data:)|<a |<link|<iframe|url\(", page)
    assert "default-src 'none'" in page


def test_what_is_gone_from_the_store_is_said(tmp_path):
    outcomes = decided(tmp_path).outcomes
    for file in outcomes["grow"].path.iterdir():
        file.unlink()
    outcomes["grow"].path.rmdir()
    assert "not in the store" in report_page(ancestors(outcomes["judge"].path))
    ran = mindcycle("lineage", outcomes["judge"].path)
    assert ran.returncode == 0
    assert re.search(r"^    corpus +corpus +\w{16} +not in the store$", ran.stdout, re.M)


def test_a_rejection_has_a_report_too(tmp_path):
    outcomes = decided(tmp_path, judge={"floor": 1000}).outcomes
    assert '<span class="rejected">rejected</span>' in report_page(
        ancestors(outcomes["judge"].path)
    )


def test_a_chain_that_was_not_one_run_from_text_is_not_said_to_be(tmp_path):
    chain = ancestors(decided(tmp_path).outcomes["judge"].path)
    assert run_yaml(chain) == ""
    assert "It was not made by one run" in report_page(chain)


def test_a_cycle_in_the_manifests_ends(tmp_path):
    outcomes = decided(tmp_path).outcomes
    grow, press = outcomes["grow"], outcomes["press"]
    entry = read_manifest(outcomes["judge"].path).inputs["pressed"]
    write_manifest(grow.path, grow.manifest.model_copy(update={"inputs": {"pressed": entry}}))
    assert [one.kind for one in ancestors(press.path)] == ["checkpoint", "corpus"]


@pytest.mark.parametrize("command", ["report", "lineage"])
def test_bad_input(command, tmp_path):
    ran = mindcycle(command, "12345", "--store", tmp_path)
    assert ran.returncode == 2
    assert "12345: is neither an artifact's directory" in ran.stderr
