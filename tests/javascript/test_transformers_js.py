"""The bundle in transformers.js, in Node and in a page of a real browser: `make javascript`.

Needs node, npm's packages of package.json under build/javascript, and Chromium.
"""

import json
import queue
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from benchmarks.serving_load import greedy_alone
from serving.bundle import Served
from tests.bundles import write_tiny_bundle
from tests.tiny_models import tiny

HERE = Path(__file__).parent
MODULES = HERE.parents[1] / "build" / "javascript" / "node_modules"
PROMPTS = ["hello", "a", "xyz xyz", "你好"]
KINDS = [
    ("plain", "fp32"),
    ("plain", "fp16"),
    ("plain", "int8"),
    ("plain", "int4"),
    ("opset23", "fp32"),
    ("microsoft", "fp32"),
    ("microsoft", "int4"),
]
IN_BROWSER = [kind for kind in KINDS if "int4" not in kind]
"""onnxruntime's WebAssembly lacks GatherBlockQuantized."""
SHAPES: list[dict[str, Any]] = [{}, {"family": "qwen2", "kv_heads": 1}, {"family": "qwen3"}]


def write(directory: Path, operators: str, precision: str, **shape: Any) -> Served:
    kind = {"operators": operators, "precision": precision, "layout": "onnx_folder"}
    write_tiny_bundle(directory, tiny(max_positions=128, **({"head_dim": 16} | shape)), **kind)
    return Served(directory / "bundle", threads=1)


def alone(served: Served, prompt: str) -> str:
    return greedy_alone(served, served.encode(prompt).tolist(), 12)


def in_node(folder: Path) -> Any:
    script = MODULES.parent / "generate.mjs"  # Node looks for modules beside the script
    shutil.copy(HERE / "generate.mjs", script)
    command = ["node", str(script), str(folder), "bundle", *PROMPTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("operators", "precision"), KINDS)
def test_node_writes_the_greedy_text(tmp_path: Path, operators: str, precision: str) -> None:
    served = write(tmp_path, operators, precision)
    wanted = [alone(served, prompt) for prompt in PROMPTS]
    found = in_node(tmp_path)
    assert found["texts"] == wanted
    assert [served.codec.decode(row[-12:]) for row in found["rows"]] == wanted


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_node_takes_every_family(tmp_path: Path, shape: dict[str, Any]) -> None:
    served = write(tmp_path, "plain", "fp32", **shape)
    assert in_node(tmp_path)["texts"] == [alone(served, prompt) for prompt in PROMPTS]


class Handler(SimpleHTTPRequestHandler):
    """The page, npm's modules, the bundle, and a place to post what was found."""

    folders: dict[str, Path]
    found: "queue.Queue[Any]"

    def translate_path(self, path: str) -> str:
        first, _, rest = path.partition("?")[0].lstrip("/").partition("/")
        return str(self.folders[first] / rest) if first in self.folders else str(HERE / first)

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.mark.parametrize(("operators", "precision"), IN_BROWSER)
def test_a_browser_writes_the_greedy_text(tmp_path: Path, operators: str, precision: str) -> None:
    served = write(tmp_path, operators, precision)
    Handler.folders = {"models": tmp_path, "modules": MODULES}
    Handler.found = queue.Queue()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/page.html?prompt={quote(PROMPTS[0])}"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'p'}"]
        browser = subprocess.Popen(
            ["chromium", *flags, "--remote-debugging-port=0", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert Handler.found.get(timeout=240) == {"text": alone(served, PROMPTS[0])}
        finally:
            browser.kill()
            browser.wait()
            server.shutdown()
