"""`mindcycle report` and `lineage`: one file with all that is known, and nothing that runs."""

import re

import pytest
import yaml

from artifacts.channels import promote
from artifacts.eval_report import EvalReport, Item
from artifacts.eval_report import write_report as write_scores
from artifacts.lineage import ancestors
from artifacts.manifest import InputEntry, read_manifest, write_manifest
from flows.chain import run_chain
from flows.report import report_page, run_yaml
from tests.command import ROOT, mindcycle
from tests.fakes.chain import fake_work
from tests.reports import report_content
from tests.tiny_models import as_artifact


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
    config, why = run_yaml(chain)
    assert config == ""
    assert "made by one run from\ntext: nothing in it was made by corpus or pre" in report_page(
        chain
    )
    assert why.startswith("nothing in it was made by corpus or pretrain")


def test_a_cycle_in_the_manifests_ends(tmp_path):
    outcomes = decided(tmp_path).outcomes
    grow, press = outcomes["grow"], outcomes["press"]
    entry = read_manifest(outcomes["judge"].path).inputs["pressed"]
    write_manifest(grow.path, grow.manifest.model_copy(update={"inputs": {"pressed": entry}}))
    assert [one.kind for one in ancestors(press.path)] == ["checkpoint", "corpus"]


def made_by(stage, store, kind, identity, fill=None, config=None, **inputs):
    """An artifact whose inputs are named by role."""
    entries = {}
    for role, path in inputs.items():
        made = read_manifest(path)
        entries[role] = InputEntry(kind=made.kind, identity=made.identity, digest=made.digest)
    fill = fill or (lambda directory: (directory / "said").write_text(identity))
    path = as_artifact(store, kind, fill, identity=identity * 64, inputs=entries)
    second = int(identity, 16)
    about = {"stage": stage, "finished": f"2025-01-01T00:00:{second:02}+00:00"}
    if config is not None:
        about["config"] = config
    write_manifest(path, read_manifest(path).model_copy(update=about))
    return path


def test_steps_and_scores_go_by_the_names_of_a_run(tmp_path):
    base = made_by("convert", tmp_path, "hf-model", "1")
    tuned = made_by("merge", tmp_path, "hf-model", "2", model=base)
    bundle = made_by("export", tmp_path, "onnx-bundle", "3", model=tuned)
    scores = {}
    for identity, model, right in (("4", base, 1), ("5", tuned, 2), ("6", bundle, 3)):
        report, items = report_content({"mmlu": [True] * right + [False] * (4 - right)}, chance=0)

        def fill(directory, report=report, items=items):
            held = map(Item.model_validate, items)
            write_scores(directory, EvalReport.model_validate(report), held)
            (directory / "report.md").write_text("# Scores\n\n![scores](scores.png)\n")

        scores[identity] = made_by("evaluate", tmp_path, "eval-report", identity, fill, model=model)
    gate = made_by("gate", tmp_path, "decision", "7", candidate=scores["5"], base=scores["4"])
    beside = made_by("gate_bundle", tmp_path, "decision", "8", candidate=scores["6"])
    end = made_by("release", tmp_path, "release", "9", decision=gate, bundle_decision=beside)
    page = report_page(ancestors(end))
    titles = re.findall(r"<h3>(.*)</h3>", page)
    first = ["convert", "merge", "export", "evaluate-base", "evaluate-tuned", "evaluate-bundle"]
    assert titles == [*first, "gate", "gate-bundle", "release"]
    row = re.search(r"<td>mmlu</td>.*?</tr>", page, re.S)[0]
    assert re.findall(r"<td>(.*)</td>", row) == ["mmlu", "4", "-", "25.0%", "50.0%", "75.0%"]
    assert "![" not in page


def lifecycle(store, digits, corpus, steps, **gate):
    """What a run makes from a corpus, to its decision; its configs say `steps`."""
    config = {"steps": steps}
    pretrain = made_by("pretrain", store, "checkpoint", digits[0], config=config, corpus=corpus)
    base = made_by("convert", store, "hf-model", digits[1], config=config, checkpoint=pretrain)
    tuned = made_by("finetune-full", store, "hf-model", digits[2], config=config, model=base)
    scores = made_by("evaluate", store, "eval-report", digits[3], config=config, model=tuned)
    made = {"candidate": scores, **gate}
    return made_by("gate", store, "decision", digits[4], config=config, **made), scores


def test_a_baseline_s_configs_are_not_said_to_make_this_release_again(tmp_path):
    corpus = made_by("corpus", tmp_path, "corpus", "0")
    _, old = lifecycle(tmp_path, "12345", corpus, steps=10)
    new, _ = lifecycle(tmp_path, "6789a", corpus, steps=20, baseline=old)
    config, why = run_yaml(ancestors(new))
    again = yaml.safe_load(config)
    assert why == ""
    assert again["baseline"] == read_manifest(old).digest
    sections = ("pretrain", "convert", "finetune", "evaluate", "gate")
    assert [again[name] for name in sections] == [{"steps": 20}] * 5


def test_a_stage_with_two_configs_or_given_weights_has_no_config_that_makes_it_again(tmp_path):
    corpus = made_by("corpus", tmp_path, "corpus", "0")
    _, old = lifecycle(tmp_path, "12345", corpus, steps=10)
    mixed, _ = lifecycle(tmp_path, "6789a", corpus, steps=20, base=old)
    two = ("", "two steps of the stage evaluate had different configs")
    assert run_yaml(ancestors(mixed)) == two
    given = made_by("pretrain", tmp_path, "checkpoint", "b", corpus=corpus)
    begun = made_by("pretrain", tmp_path, "checkpoint", "c", corpus=corpus, initial=given)
    assert run_yaml(ancestors(begun)) == ("", "pretrain began from weights that were given to it")


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("", "--to: . is a directory; a file would be right"),
        ("{store}", "--to: {store} is a directory; a file would be right"),
        ("{store}/no/x.html", "--to: {store}/no/x.html cannot be written: No such file"),
        ("{artifact}/x.html", "x.html lies inside the artifact {artifact}, whose files are fixed"),
    ],
)
def test_a_place_where_no_page_can_be(to, says, tmp_path):
    artifact = made_by("release", tmp_path, "release", "1")
    names = {"store": tmp_path, "artifact": artifact}
    ran = mindcycle("report", artifact, "--to", to.format(**names))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says.format(**names) in ran.stderr


def test_the_artifact_one_stands_in_gets_no_page_inside(tmp_path):
    artifact = made_by("release", tmp_path, "release", "1")
    ran = mindcycle("report", ".", cwd=artifact)
    assert ran.returncode == 2
    assert "--to: release-1111111111111111.html lies inside the artifact" in ran.stderr
    assert mindcycle("verify", ".", cwd=artifact).returncode == 0


@pytest.mark.parametrize("command", ["show", "verify", "report", "lineage"])
def test_what_generate_takes_for_a_name_these_take_too(command, tmp_path):
    artifact = made_by("release", tmp_path / "store", "release", "1")
    promote(tmp_path / "store", "production", artifact, "tried")
    for name in ("latest", "production"):
        ran = mindcycle(command, name, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert "1111111111111111" in ran.stdout


@pytest.mark.parametrize("command", ["report", "lineage"])
def test_bad_input(command, tmp_path):
    ran = mindcycle(command, "12345", "--store", tmp_path)
    assert ran.returncode == 2
    assert "12345: is neither an artifact's directory" in ran.stderr
