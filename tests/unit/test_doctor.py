"""The doctor knows the pinned combination, and explains what users run into."""

from importlib import metadata
from pathlib import Path

import pytest

from flows import doctor


def with_versions(**versions):
    def installed(name):
        changed = versions.get(name.replace("-", "_"), metadata.version(name))
        if changed is None:
            raise metadata.PackageNotFoundError(name)
        return changed

    return installed


def test_this_environment_is_as_pinned():
    (finding,) = doctor.check_packages(metadata.version)
    assert finding.right
    assert "mindspore 2.10.0" in finding.text


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("numpy", "2.1.0", "numpy.core.multiarray failed to import"),
        ("pyarrow", "26.0.0", "refuses numpy 1.26"),
        ("ml_dtypes", "0.6.0", "needs numpy 2"),
        ("mindspore", "2.9.0", "written and tested for this version"),
        ("prefect", "3.1.0", "the project pins it"),
        ("datasets", None, "is missing"),
    ],
)
def test_versions_that_clash_are_named_with_reason_and_remedy(package, version, words):
    (finding,) = doctor.check_packages(with_versions(**{package: version}))
    assert not finding.right
    assert package.replace("_", "-") in finding.text
    assert words in finding.text + finding.remedy
    assert "requirements.lock" in finding.remedy


@pytest.mark.parametrize(
    ("version", "right"), [((3, 9), False), ((3, 10), True), ((3, 12), True), ((3, 13), False)]
)
def test_python_versions(version, right):
    (finding,) = doctor.check_python(version)
    assert finding.right is right
    assert bool(finding.remedy) is not right


def test_disk_is_measured_where_the_store_will_be(tmp_path, monkeypatch):
    asked = []

    def usage(path):
        asked.append(path)
        return type("usage", (), {"free": 1e9})

    monkeypatch.setattr(doctor.shutil, "disk_usage", usage)
    (finding,) = doctor.check_disk(tmp_path / "not" / "yet")
    assert not finding.right
    assert asked == [tmp_path]
    assert "--store" in finding.remedy


def test_a_place_that_cannot_be_written_is_wrong():
    (finding,) = doctor.check_disk(Path("/proc/store"))  # not even by root
    assert not finding.right
    assert finding.text.startswith("/proc cannot be written: ")
    assert "--store" in finding.remedy


@pytest.mark.parametrize(
    ("text", "right", "words"),
    [
        ("MemTotal: 9 kB\nMemAvailable:    8000000 kB\n", True, "8.0 GB"),
        ("MemAvailable:    1000000 kB\n", False, "1.0 GB"),
        ("nothing of it", True, "unknown"),
    ],
)
def test_memory(tmp_path, text, right, words):
    (tmp_path / "meminfo").write_text(text)
    (finding,) = doctor.check_memory(tmp_path / "meminfo")
    assert (finding.right, words in finding.text) == (right, True)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ModuleNotFoundError: No module named 'mindspore'", "make quickstart"),
        ("ImportError: libgomp.so.1: cannot open shared object file", "libgomp1"),
        ("ImportError: libxyz.so: cannot open shared object file", "a system library"),
        ("RuntimeError: numpy.core.multiarray failed to import", "numpy==1.26.4"),
        ("version `GLIBC_2.35' not found", "C library is too old"),
        ("something nobody has seen", "its last lines:"),
    ],
)
def test_failures_are_explained(output, words):
    assert words in doctor.explain(["Traceback", output])


def test_a_failing_program_is_a_finding_with_its_last_words(tmp_path, monkeypatch):
    program = tmp_path / "probe.py"
    program.write_text("import sys; print(sys.argv[1]); sys.exit('libnuma.so.1 is not there')")
    monkeypatch.setattr(doctor, "PROBE", program)
    finding = doctor.probe("operator")
    assert not finding.right
    assert finding.text == "ended with exit code 1: libnuma.so.1 is not there"
    assert "libnuma1" in finding.remedy


def test_a_program_that_hangs_is_a_finding(tmp_path, monkeypatch):
    program = tmp_path / "probe.py"
    program.write_text("import signal, time; signal.alarm(1); time.sleep(60)")
    monkeypatch.setattr(doctor, "PROBE", program)
    assert doctor.probe("operator").text.startswith("no result after")


def test_one_wrong_finding_makes_the_whole_wrong(tmp_path, monkeypatch, capsys):
    findings = [doctor.Finding(True, "fine"), doctor.Finding(False, "broken", "mend it")]
    monkeypatch.setattr(doctor, "checks", lambda store: [("thing", lambda: findings)])
    assert doctor.examine(Path(tmp_path)) is False
    shown = capsys.readouterr().out
    assert "right  thing" in shown
    assert "WRONG  thing" in shown
    assert "mend it" in shown
    monkeypatch.setattr(doctor, "checks", lambda store: [("thing", lambda: findings[:1])])
    assert doctor.examine(Path(tmp_path)) is True


def test_mindspore_really_computes_here():
    finding = doctor.probe("operator")
    assert finding == doctor.Finding(True, "device CPU")
