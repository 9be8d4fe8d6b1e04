"""What a user may type wrong: a sentence, the right exit code, nothing done. Help is light."""

import shlex
import signal
import subprocess
import sys

import pytest

from tests.command import MINDCYCLE, ROOT, environment, mindcycle, start_mindcycle

TINY = ROOT / "configs" / "tiny.yaml"
CASES = [
    (("run", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file"),
    (
        ("run", TINY, "--set", "pretrain.step=3"),
        "pretrain.step: is no known key; did you mean step",
    ),
    (("run", TINY, "--set", "pretrain.steps=0"), "pretrain.steps: is 0; "),
    (("run", TINY, "--set", "pretrain.steps"), "has no '='"),
    (("run", TINY, "--set", "name=a/b"), "name: is 'a/b'; "),
    (("run", TINY, "--set", "corpus.sources.0.kind=moon"), "corpus.sources.0: "),
    (("run", TINY, "--set", "evaluate.tasks.7.limit=1"), "none of 0 to 1"),
    (("run", TINY, "--set", "gate.rules.0.task=mmlu"), "gate.rules.0.task: is 'mmlu'; evaluate as"),
    (("run", TINY, "--set", "baseline=0123abcd"), "baseline: 0123abcd: is neither"),
    (("run", TINY, "--bogus"), "No such option"),
    (("stage", "pretrian", TINY), "pretrian: is no step, the steps are corpus, pretrain"),
    (("stage", "gate", TINY, "--input", "base"), "input base: write role=directory"),
    (("stage", "gate", TINY, "--input", "bas=x"), "x: is neither an artifact's directory"),
    (("check", TINY, "--set", "finetune.data={files: [no/*.json], format: alpaca}"), "'no/*.json'"),
    (("verify", "nothing"), "nothing: is neither an artifact's directory"),
    (("show", "nothing"), "nothing: is neither an artifact's directory"),
    (("ls", "--store", "no-store"), "store: no-store is no directory"),
    (("compare", "nothing", "nothing"), "nothing: is neither an artifact's directory"),
    (("compare", "nothing"), "compare: needs two eval-reports at least"),
    (("promote", "1234", "--to", "prod", "--why", "x"), "channel: is 'prod'; candidate, staging"),
    (("promote", "1234", "--to", "staging", "--why", "x"), "1234: is neither an artifact's dir"),
    (("rollback", "staging", "--why", "x"), "staging: nothing stood there before"),
    (("approve", "1234", "--why", "x"), "1234: is neither an artifact's directory"),
    (("up",), "prefect.yaml: is not here"),
    (("up", "--port", "70000"), "Invalid value for '--port'"),
    (("fly",), "No such command"),
    (("plan", TINY, "--devices", "8"), "--devices: is 8; a layout is proposed for devices of a s"),
    (("check", TINY, "--set", "store=42"), "store: is 42; a path would be right"),
    (("ls", "--store", ""), "--store: is ''; a directory would be right"),
    (("run", TINY, "--store", ""), "--store: is ''; a directory would be right"),
    (("channels", "--store", "nope"), "store: nope is no directory"),
    (("show", "latest", "--store", "nope"), "store: nope is no directory"),
    (("show", "\x1b[31m"), "'\\x1b[31m': is neither"),
    (("promote", "x", "--to", "staging", "--why", "\udcff"), "'\\udcff': is no text in utf-8"),
    (("import", "hf\udcff"), "'hf\\udcff': is no text in utf-8"),
    (("ls", "--store", "s\udcff"), "'s\\udcff': is no text in utf-8"),
    (("check", TINY, "--set", "\udcff=1"), "'\\udcff=1': is no text in utf-8"),
]


@pytest.mark.parametrize(("arguments", "words"), CASES, ids=lambda case: str(case)[:60])
def test_bad_input_ends_with_a_sentence_and_exit_2(arguments, words, tmp_path):
    ran = mindcycle(*arguments, cwd=tmp_path)
    assert ran.returncode == 2, ran.stderr
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_trace(closed, tmp_path):
    command = shlex.join([*MINDCYCLE, "ls", "--store", str(tmp_path)])
    ran = subprocess.run(
        ["sh", "-c", f"{command} {closed}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_locale_without_utf8_is_a_sentence(tmp_path):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = mindcycle("ls", "--store", "s ü", cwd=tmp_path, **plain)
    assert ran.returncode == 2
    assert ran.stderr.startswith("'s \\udcc3\\udcbc': is no text in ascii, ")


def test_all_problems_of_a_config_come_at_once(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(TINY.read_text().replace("layers: 2", "layers: 0").replace("rank: 2", "rnk: 2"))
    ran = mindcycle("run", bad, "--set", "prove.threshold=-1", cwd=tmp_path)
    assert ran.returncode == 2
    lines = ran.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("pretrain.model.layers: is 0; ")
    assert lines[1] == "finetune.lora.rnk: is no known key; did you mean rank?"
    assert lines[2].startswith("prove.threshold: is -1; ")


def test_a_good_config_is_said_to_be_fine(tmp_path):
    ran = mindcycle("check", TINY, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, f"{TINY}: is fine; 13 steps into store\n")
    assert list(tmp_path.iterdir()) == []


def test_help_imports_nothing_heavy():
    program = (
        "import sys\n"
        "from flows.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as exit:\n    assert exit.code == 0\n"
        "heavy = {'prefect', 'pydantic', 'numpy', 'mindspore', 'yaml'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Usage: mindcycle" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"


def test_what_cannot_go_on_does_not_say_so():
    process = start_mindcycle("doctor")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("\nStopped.\n")


def test_the_port_of_another_server_is_refused(tmp_path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = mindcycle("up", "--port", port, PREFECT_HOME=str(tmp_path))
    assert ran.returncode == 2
    assert f"port {port} on 127.0.0.1: Address already in use" in ran.stderr


def test_a_named_server_that_does_not_answer_is_refused(tmp_path):
    ran = mindcycle(
        "run",
        TINY,
        "--store",
        tmp_path / "store",
        PREFECT_API_URL="http://127.0.0.1:9/api",
        PREFECT_HOME=str(tmp_path / "home"),
    )
    assert ran.returncode == 2
    assert "PREFECT_API_URL: http://127.0.0.1:9/api does not answer" in ran.stderr
    assert not (tmp_path / "store").exists()
