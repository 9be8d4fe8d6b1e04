"""`mindcycle serve`, `generate` and `chat` as processes."""

import contextlib
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from artifacts.errors import BadInput
from artifacts.json_files import read_object, write_object
from artifacts.onnx_bundle import DATA, GENAI_CONFIG, adapter_file
from benchmarks.serving_load import MODEL, ServerProcess, greedy_alone, run_load
from flows.cli import app
from serving.answer import Damaged
from serving.bundle import Served
from tests.bundles import write_tiny_bundle
from tests.command import MINDCYCLE, environment, mindcycle
from tests.tiny_models import merged, random_adapter, tiny

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle")
    write_tiny_bundle(directory, tiny(max_positions=256))
    (directory / "bundle" / "chat_template.jinja").write_text(TEMPLATE)
    return directory / "bundle"


def test_answers_under_load_are_those_alone(bundle: Path) -> None:
    """Short; `python -m benchmarks.serving_load` is the long form."""
    outcome = run_load(bundle, 16, 4, 12, "--threads", "1", "--rows", "8")
    assert outcome.wrong == []
    assert outcome.answers >= 16
    assert set(outcome.statuses) == {"200"}
    assert outcome.stop_code == 0
    assert set(outcome.cut_streams) <= {"done", "error", "refused"}


def test_a_second_signal_cuts_the_answers(bundle: Path) -> None:
    server = ServerProcess(bundle, "--threads", "1", "--rows", "1")
    body = {"model": MODEL, "prompt": "hello", "stream": True, "max_tokens": 250, "temperature": 0}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        last = [line for line in lines if line][-1:]
    assert server.process.wait(20) == 0
    assert not last or last[0] == "data: [DONE]" or '"error"' in last[0]


def test_a_client_that_leaves_takes_its_answer_along(bundle: Path) -> None:
    server = ServerProcess(bundle, "--threads", "1")
    body = {"model": MODEL, "prompt": "hello", "stream": True, "max_tokens": 250, "temperature": 0}
    try:
        for stream in (True, False):
            hasty = httpx.Client(base_url=server.url, timeout=httpx.Timeout(10, read=0.05))
            with hasty, contextlib.suppress(httpx.ReadTimeout):
                hasty.post("/v1/completions", json=body | {"stream": stream})
        page = ""
        for _ in range(100):
            page = httpx.get(f"{server.url}/metrics").text
            if "mindcycle_running 0.0" in page:
                break
        assert "mindcycle_running 0.0" in page
    finally:
        assert server.stop() == 0


def test_a_connection_outlives_what_clients_keep(bundle: Path) -> None:
    """httpx keeps an idle one for 5 s; closed by the server then, it broke under a request."""
    server = ServerProcess(bundle, "--threads", "1")
    connection = HTTPConnection(server.url.removeprefix("http://"))
    try:
        for pause in (0, 6):
            time.sleep(pause)
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
    finally:
        connection.close()
        assert server.stop() == 0


def test_generate_prints_the_greedy_text(bundle: Path) -> None:
    served = Served(bundle, threads=1)
    wanted = greedy_alone(served, served.encode("hello").tolist(), 20)
    asked = ["generate", bundle, "hello", "--sampling", "greedy", "--max-tokens", 20]
    done = mindcycle(*asked)
    assert (done.returncode, done.stdout) == (0, wanted + "\n")
    assert "5 tokens read in" in done.stderr
    assert "20 written at" in done.stderr
    stopped = mindcycle(*asked, "--stop", wanted[6:8])
    assert stopped.stdout == wanted[: wanted.index(wanted[6:8])] + "\n"
    piped = subprocess.run(
        [*MINDCYCLE, *map(str, [*asked[:2], *asked[3:]])],
        input="hello",
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert piped.stdout == wanted + "\n"


def test_chat_remembers_until_an_empty_line(bundle: Path) -> None:
    served = Served(bundle, threads=1)

    def said(prompt: str) -> str:
        return greedy_alone(served, served.encode(prompt).tolist(), 6)

    first = said("user: hi\nassistant:")
    second = said(f"user: hi\nassistant: {first}\nuser: so?\nassistant:")
    done = subprocess.run(
        [*MINDCYCLE, "chat", str(bundle), "--sampling", "greedy", "--max-tokens", "6"],
        input="hi\nso?\n\nhi\n",
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert done.stdout == f"> {first}\n> {second}\n> > {first}\n> "


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "nowhere", "x"], "nowhere: is neither an artifact's directory"),
        (["generate", "BUNDLE", "x", "--sampling", "odd"], "sampling: is 'odd'; no such profile"),
        (["generate", "BUNDLE", ""], "prompt: has no token"),
        (["generate", "BUNDLE", "x" * 300], "prompt: has 300 tokens"),
        (["generate", "BUNDLE", "x", "--adapter", "none"], "none: is no file"),
        (["generate", "BUNDLE", "\udcff"], "prompt: is not UTF-8"),
        (
            ["generate", "BUNDLE", "x", "--adapter", "BUNDLE/model.onnx"],
            "no .onnx_adapter file, or",
        ),
        (["generate", "BUNDLE", "x", "--stop", ""], "sampling: stop holds an empty text"),
        (["serve", "BUNDLE", "--adapter", "none"], "--adapter: is 'none'; NAME=FILE would be"),
        (["serve", "BUNDLE", "--adapter", "a=x", "--adapter", "a=y"], "names a twice"),
        (["serve", "BUNDLE", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8000"),
        (["serve", "BUNDLE", "--host", ""], "--host: is ''; an address such as 127.0.0.1 would"),
        (["serve", "BUNDLE", "--grace", "inf"], "--grace: is inf; 0 to 86400 would be right"),
        (["generate", "latest", "x", "--store", "nope"], "store: nope is no directory"),
    ],
)
def test_wrong_commands(bundle: Path, arguments: list[str], says: str) -> None:
    """In this process, without the seconds that a start takes."""
    with pytest.raises(BadInput, match=re.escape(says)):
        app([each.replace("BUNDLE", str(bundle)) for each in arguments])


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 1}, {"num_hidden_layers": 3}, {"num_key_value_heads": 4}],
)
def test_a_config_of_another_graph_is_refused(
    bundle: Path, tmp_path: Path, changes: dict[str, int]
) -> None:
    shutil.copytree(bundle, tmp_path / "bundle")
    config = read_object(path := tmp_path / "bundle" / GENAI_CONFIG)
    config["model"]["decoder"] |= changes
    write_object(path, config)
    with pytest.raises(BadInput, match=r"the graph beside it has others"):
        Served(tmp_path / "bundle", threads=1)


def test_a_tokenizer_of_a_larger_model_is_refused(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "bundle")
    tokenizer = read_object(path := tmp_path / "bundle" / "tokenizer.json")
    tokenizer["model"]["vocab"]["more"] = 5000
    write_object(path, tokenizer)
    with pytest.raises(BadInput, match="has token ids up to 5000, the model's vocabulary ends at"):
        Served(tmp_path / "bundle", threads=1)


def test_damaged_weights_are_said(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "bundle")
    data = tmp_path / "bundle" / DATA
    data.write_bytes(b"\xff" * data.stat().st_size)
    with pytest.raises(Damaged, match="the model's logits are not numbers"):
        app(["generate", str(tmp_path / "bundle"), "hello"])


def test_a_line_that_is_no_text_does_not_end_a_chat(bundle: Path) -> None:
    done = subprocess.run(
        [*MINDCYCLE, "chat", str(bundle), "--sampling", "greedy", "--max-tokens", "3"],
        input=b"\xff\nhi\n",
        capture_output=True,
        env=environment(),
        check=True,
    )
    assert b"prompt: is not UTF-8" in done.stderr
    assert b"3 written at" in done.stderr


def test_ctrl_c_ends_a_chat_with_a_word(bundle: Path) -> None:
    chat = subprocess.Popen(
        [*MINDCYCLE, "chat", str(bundle)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert chat.stderr is not None
    assert chat.stderr.readline().startswith("Ctrl-D ends the chat")
    chat.send_signal(signal.SIGINT)
    assert (chat.communicate(timeout=20)[1].strip(), chat.returncode) == ("Stopped.", 130)


def test_adapters_are_asked_by_name(tmp_path: Path) -> None:
    """Answers under two adapters and none, at once, are those of the merged models alone."""
    a = tiny(max_positions=64)
    adapters = {
        "one": random_adapter(a, 4, ("q_proj", "v_proj"), 1),
        "two": random_adapter(a, 8, ("up_proj",), 2),
    }
    weights = write_tiny_bundle(tmp_path, a, adapters=adapters)
    wanted = {}
    for name, tuned in {MODEL: None, **adapters}.items():
        write_tiny_bundle(tmp_path / name, a, merged(weights, tuned) if tuned else weights)
        alone = Served(tmp_path / name / "bundle", threads=1)
        wanted[name] = greedy_alone(alone, [40, 41, 42], 24)
    assert len(set(wanted.values())) == 3
    server = ServerProcess(tmp_path / "bundle", "--threads", "1")
    body = {"prompt": [40, 41, 42], "temperature": 0, "max_tokens": 24}

    def text(name: str) -> str:
        response = httpx.post(f"{server.url}/v1/completions", json=body | {"model": name})
        return str(response.json()["choices"][0]["text"])

    try:
        asked = [*wanted] * 4
        with ThreadPoolExecutor(len(asked)) as pool:
            assert list(pool.map(text, asked)) == [wanted[name] for name in asked]
        entries = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [(entry["id"], entry.get("parent")) for entry in entries] == [
            (MODEL, None),
            ("one", MODEL),
            ("two", MODEL),
        ]
    finally:
        server.stop()
    path = adapter_file(tmp_path / "bundle", "one")
    done = mindcycle("serve", tmp_path / "bundle", "--name", "one")
    assert (done.returncode, "--name: one is an adapter's name" in done.stderr) == (2, True)
    asked_alone = ["hello", "--sampling", "greedy", "--max-tokens", 8, "--adapter", path]
    done = mindcycle("generate", tmp_path / "bundle", *asked_alone)
    tuned = Served(tmp_path / "one" / "bundle", threads=1)
    assert done.stdout == greedy_alone(tuned, tuned.encode("hello").tolist(), 8) + "\n"


def test_a_taken_port_is_said(bundle: Path) -> None:
    server = ServerProcess(bundle, "--threads", "1")
    try:
        done = mindcycle("serve", bundle, "--port", server.url.rpartition(":")[2])
        assert done.returncode == 2
        assert "Address already in use" in done.stderr
    finally:
        server.stop()
