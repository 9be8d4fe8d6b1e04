"""The endpoint: OpenAI's shapes, every wrong request a sentence, and no job left behind."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from artifacts.onnx_bundle import OnnxModel
from serving.app import Limits, Server, _line
from serving.bundle import Served
from serving.engine import Busy, Engine, Failure, Piece, Stopping
from serving.meters import Meters
from serving.sampling import adapted, named
from serving.terminal import draw
from serving.wire import ChatRequest
from tests.bundles import write_tiny_bundle
from tests.tiny_models import tiny

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "tiny", "prompt": "hello", "temperature": 0, "max_tokens": 8}
GOOD_CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 0,
    "max_tokens": 8,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    directory = tmp_path_factory.mktemp("served")
    write_tiny_bundle(directory, tiny(max_positions=200))
    (directory / "bundle" / "chat_template.jinja").write_text(TEMPLATE)
    return Served(directory / "bundle", threads=1)


def client_of(served: Served, engine: Engine, meters: Meters) -> TestClient:
    limits = Limits(body_bytes=30_000, max_tokens=150)
    server = Server(served, engine, "tiny", [], named("default"), limits, meters)
    return TestClient(server.app(), raise_server_exceptions=False)


@pytest.fixture
def engine(served: Served) -> Iterator[Engine]:
    engine = Engine(served.model, rows=4, waiting=8, meters=Meters())
    yield engine
    engine.stop(0)
    engine.join()


@pytest.fixture
def client(served: Served, engine: Engine) -> TestClient:
    return client_of(served, engine, engine._meters)


def alone(served: Served, prompt: str, tokens: int = 8) -> str:
    sampling = adapted(named("greedy"), {"max_tokens": tokens})
    return "".join(draw(served, served.answer(served.encode(prompt), sampling)))


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_a_completion(served: Served, client: TestClient) -> None:
    found = client.post(COMPLETIONS, json=GOOD).json()
    assert found["object"] == "text_completion"
    assert found["choices"] == [
        {"index": 0, "text": alone(served, "hello"), "logprobs": None, "finish_reason": "length"}
    ]
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    ids = served.encode("hello").tolist()
    for prompt in (ids, ["hello"], [ids]):
        again = client.post(COMPLETIONS, json=GOOD | {"prompt": prompt}).json()
        assert again["choices"] == found["choices"], prompt


def test_a_chat(served: Served, client: TestClient) -> None:
    found = client.post(CHAT, json=GOOD_CHAT).json()
    wanted = alone(served, "<|im_start|>user hello<|im_end|>")
    assert found["object"] == "chat.completion"
    assert found["choices"][0]["message"] == {"role": "assistant", "content": wanted}
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    in_parts = GOOD_CHAT | {"messages": [{"role": "user", "content": parts}]}
    del in_parts["max_tokens"]
    again = client.post(CHAT, json=in_parts | {"max_completion_tokens": 8}).json()
    assert again["choices"] == found["choices"]


def test_a_name_reaches_the_template(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(served, "chat_prompt", lambda messages: seen.append(messages) or "x")
    server = Server(served, None, "tiny", [], named("greedy"), Limits(), None)  # type: ignore[arg-type]
    said = [{"role": "user", "content": "hello", "name": "Ada"}, {"role": "user", "content": "you"}]
    server._prompt(ChatRequest.model_validate({"model": "tiny", "messages": said}))
    assert seen == [said]


def test_a_line_of_a_stream_ends_where_it_ends() -> None:
    assert _line({"text": "a\u2028b\u0085c"}).splitlines()[1:] == [""]


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, GOOD), (CHAT, GOOD_CHAT)])
def test_a_stream_is_the_whole_answer_in_pieces(client: TestClient, path: str, body: Any) -> None:
    (choice,) = client.post(path, json=body).json()["choices"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *pieces, counted = events(client.post(path, json=body | options))
    assert counted["choices"] == []
    assert counted["usage"]["completion_tokens"] == 8
    choices = [piece["choices"][0] for piece in pieces]
    if path == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(each["delta"].get("content", "") for each in choices)
        assert text == choice["message"]["content"]
    else:
        assert "".join(each["text"] for each in choices) == choice["text"]
    assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + ["length"]
    assert len({piece["id"] for piece in pieces}) == 1


def test_the_longest_answer_holds_where_a_request_names_none(
    served: Served, client: TestClient
) -> None:
    profile = named("greedy")
    assert profile.max_tokens > 150
    found = client.post(COMPLETIONS, json=without("max_tokens")).json()
    assert found["usage"]["completion_tokens"] == 150
    assert found["choices"][0]["finish_reason"] == "length"


def test_a_stop_text_ends_an_answer_and_is_not_part_of_it(
    served: Served, client: TestClient
) -> None:
    text = alone(served, "hello", 40)
    stop = text[4:6]
    for body in ({"stop": stop}, {"stop": ["never to be seen", stop]}):
        found = client.post(COMPLETIONS, json=GOOD | {"max_tokens": 40} | body).json()
        assert found["choices"][0]["text"] == text[: text.index(stop)]
        assert found["choices"][0]["finish_reason"] == "stop"


def test_seeds_repeat_and_differ(client: TestClient) -> None:
    def text(seed: int) -> str:
        body = GOOD | {"temperature": 1.0, "seed": seed, "max_tokens": 30}
        return client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]

    assert text(1) == text(1) != text(2)


def test_models_health_and_figures(client: TestClient) -> None:
    client.post(COMPLETIONS, json=GOOD)
    client.post(COMPLETIONS, json=GOOD | {"model": "other"})
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 200)
    assert client.get("/v1/models/tiny").json() == model
    assert client.get("/health").json() == {"status": "ok"}
    page = client.get("/metrics").text
    assert 'mindcycle_requests_total{path="/v1/completions",status="200"} 1.0' in page
    assert 'mindcycle_requests_total{path="/v1/completions",status="404"} 1.0' in page
    assert "mindcycle_answer_tokens_total 8.0" in page
    assert "mindcycle_prompt_tokens_total 5.0" in page


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


REFUSED: list[tuple[str, Any, int, str]] = [
    (COMPLETIONS, b"", 400, "body: is no JSON"),
    (COMPLETIONS, b"{", 400, "body: is no JSON"),
    (COMPLETIONS, b'"\xff"', 400, "not UTF-8"),
    (COMPLETIONS, b'"\\ud800"', 400, "half a character"),
    (COMPLETIONS, b'{"model": "tiny", "prompt": "\xed\xa0\x80"}', 400, "not UTF-8 at byte 29"),
    (COMPLETIONS, json.dumps(GOOD | {"prompt": "\ud800"}).encode("utf-16"), 400, "not UTF-8"),
    (COMPLETIONS, b"[" * 25_000, 400, "nested too deeply"),
    (COMPLETIONS, b"[1]", 400, "body: must hold an object, not a list"),
    (COMPLETIONS, b"null", 400, "body: must hold an object, not null"),
    (COMPLETIONS, GOOD | {"prompt": "x" * 40_000}, 413, "body: is longer than 30000 bytes"),
    (COMPLETIONS, without("model"), 400, "model: is required and missing"),
    (COMPLETIONS, without("prompt"), 400, "prompt: is required and missing"),
    (COMPLETIONS, GOOD | {"model": 3}, 400, "model: is 3"),
    (COMPLETIONS, GOOD | {"model": ""}, 404, "model: an empty name is not served"),
    (COMPLETIONS, GOOD | {"model": "gpt"}, 404, "model: gpt is not served; there is tiny"),
    (COMPLETIONS, GOOD | {"model": "../tiny"}, 404, "is not served"),
    (COMPLETIONS, GOOD | {"prompt": ""}, 400, "prompt: has no token"),
    (COMPLETIONS, GOOD | {"prompt": []}, 400, "prompt: is empty; a text"),
    (COMPLETIONS, GOOD | {"prompt": ["x", "y"]}, 400, "prompt: holds 2 prompts; one a request"),
    (COMPLETIONS, GOOD | {"prompt": [["x"]]}, 400, "prompt.0: is 'x'"),
    (COMPLETIONS, GOOD | {"prompt": [1, -2]}, 400, "token -2 does not exist"),
    (COMPLETIONS, GOOD | {"prompt": [260]}, 400, "the vocabulary ends at 259"),
    (COMPLETIONS, GOOD | {"prompt": [1.5]}, 400, "prompt.0: is 1.5"),
    (COMPLETIONS, GOOD | {"prompt": {"a": 1}}, 400, "prompt: "),
    (COMPLETIONS, GOOD | {"prompt": "x" * 300}, 400, "max_tokens: is 8 after a prompt of 300"),
    (COMPLETIONS, without("max_tokens") | {"prompt": "x" * 200}, 400, "prompt: has 200 tokens"),
    (COMPLETIONS, GOOD | {"max_tokens": 0}, 400, "max_tokens: is 0"),
    (COMPLETIONS, GOOD | {"max_tokens": "8"}, 400, "max_tokens: is '8'"),
    (COMPLETIONS, GOOD | {"max_tokens": 199}, 400, "both together may have 200"),
    (COMPLETIONS, GOOD | {"max_tokens": 160}, 400, "at most 150 are served"),
    (COMPLETIONS, GOOD | {"temperature": -0.1}, 400, "temperature: is -0.1"),
    (COMPLETIONS, GOOD | {"temperature": 2.5}, 400, "temperature: is 2.5"),
    (COMPLETIONS, b'{"model": "tiny", "prompt": "x", "temperature": NaN}', 400, "temperature"),
    (COMPLETIONS, GOOD | {"top_p": 0}, 400, "top_p: is 0"),
    (COMPLETIONS, GOOD | {"top_k": -1}, 400, "top_k: is -1"),
    (COMPLETIONS, GOOD | {"seed": -1}, 400, "seed: is -1"),
    (COMPLETIONS, GOOD | {"seed": 1 << 70}, 400, "seed: is 1180591620717411303424"),
    (COMPLETIONS, GOOD | {"stop": ""}, 400, "stop: is ''"),
    (COMPLETIONS, GOOD | {"stop": ["x"] * 17}, 400, "stop: "),
    (COMPLETIONS, GOOD | {"n": 2}, 400, "n: is 2"),
    (COMPLETIONS, GOOD | {"best_of": 3}, 400, "best_of: is 3"),
    (COMPLETIONS, GOOD | {"echo": True}, 400, "echo: is true; input should be false"),
    (COMPLETIONS, GOOD | {"logprobs": 5}, 400, "logprobs: is 5"),
    (COMPLETIONS, GOOD | {"presence_penalty": 0.5}, 400, "presence_penalty: is 0.5"),
    (COMPLETIONS, GOOD | {"logit_bias": {"5": 1}}, 400, "logit_bias: "),
    (COMPLETIONS, GOOD | {"stream": "yes"}, 400, "stream: is 'yes'"),
    (COMPLETIONS, GOOD | {"max_token": 8}, 400, "max_token: is no known key"),
    (CHAT, GOOD_CHAT | {"messages": []}, 400, "messages: "),
    (CHAT, GOOD_CHAT | {"messages": [{"role": "user"}]}, 400, "content: is required"),
    (CHAT, GOOD_CHAT | {"messages": [{"role": "robot", "content": "x"}]}, 400, "role: is 'robot'"),
    (
        CHAT,
        GOOD_CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages.0.content: ",
    ),
    (CHAT, GOOD_CHAT | {"tools": [{"type": "function"}]}, 400, "tools: "),
    (CHAT, GOOD_CHAT | {"response_format": {"type": "json_object"}}, 400, "response_format"),
    (CHAT, GOOD_CHAT | {"prompt": "x"}, 400, "prompt: is no known key"),
]


@pytest.mark.parametrize(("path", "body", "status", "says"), REFUSED)
def test_wrong_requests(client: TestClient, path: str, body: Any, status: int, says: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(path, content=content)
    message = response.json()["error"]["message"]
    assert response.status_code == status, message
    assert says in message
    assert "\n" not in message or status == 400
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", COMPLETIONS, 405, "does not take GET"),
        ("PUT", CHAT, 405, "does not take PUT"),
        ("POST", "/v1/embeddings", 404, "/v1/embeddings: is not served; there are"),
        ("GET", "/v1/models/none", 404, "model: none is not served"),
        ("GET", "/../../etc/passwd", 404, "is not served"),
    ],
)
def test_wrong_places(client: TestClient, method: str, path: str, status: int, says: str) -> None:
    response = client.request(method, path)
    assert (response.status_code, says in response.json()["error"]["message"]) == (status, True)


def test_who_leaves_in_the_middle_of_a_request_is_counted(client: TestClient) -> None:
    """Not a failure of the server's: no trace in its log."""
    said: list[Any] = [{"type": "http.request", "body": b"{", "more_body": True}]
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": []}

    async def receive() -> Any:
        return said.pop() if said else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody listens."""

    asyncio.run(client.app(scope, receive, send))  # type: ignore[arg-type]
    wanted = f'mindcycle_requests_total{{path="{COMPLETIONS}",status="499"}} 1.0'
    assert wanted in client.get("/metrics").text


class SlowModel:
    """A model that takes its time, so that others can be seen waiting."""

    def __init__(self, model: OnnxModel, seconds: float = 0.02, fails_at: int | None = None):
        self._model, self._seconds, self._fails_at, self._calls = model, seconds, fails_at, 0

    def forward(self, *given: Any) -> Any:
        self._calls += 1
        time.sleep(self._seconds)
        if self._calls == self._fails_at:
            raise RuntimeError("out of luck")
        return self._model.forward(*given)


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def long_answer(served: Served) -> Any:
    return served.answer(served.encode("hello"), adapted(named("greedy"), {"max_tokens": 150}))


def test_more_than_may_wait_are_sent_away(served: Served) -> None:
    engine = Engine(SlowModel(served.model), rows=1, waiting=2, meters=Meters())  # type: ignore[arg-type]
    jobs = [engine.submit(long_answer(served), lambda event: None)]
    wait_for(lambda: not engine._waiting)
    jobs += [engine.submit(long_answer(served), lambda event: None) for _ in range(2)]
    with pytest.raises(Busy, match="2 requests are waiting already"):
        engine.submit(long_answer(served), lambda event: None)
    client = client_of(served, engine, engine._meters)
    response = client.post(COMPLETIONS, json=GOOD)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    for job in jobs:
        job.cancelled = True
    wait_for(lambda: not engine._jobs())  # cancelled ones make room, running or waiting
    assert client.post(COMPLETIONS, json=GOOD).status_code == 200
    engine.stop(0)
    engine.join()


def test_who_leaves_while_waiting_frees_the_place_at_once(served: Served) -> None:
    slow = SlowModel(served.model)
    engine = Engine(slow, rows=1, waiting=1, meters=Meters())  # type: ignore[arg-type]
    first = engine.submit(long_answer(served), lambda event: None)
    wait_for(lambda: not engine._waiting)
    client = client_of(served, engine, engine._meters)
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": []}
    for _ in range(3):
        said: list[Any] = [{"type": "http.request", "body": json.dumps(GOOD).encode()}]

        async def receive(said: list[Any] = said) -> Any:
            if said:
                return said.pop()
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            """Nobody listens."""

        asyncio.run(client.app(scope, receive, send))  # type: ignore[arg-type]
    assert first.answer.reason is None  # they left before anything could come
    engine.submit(long_answer(served), lambda event: None).cancelled = True
    page = client.get("/metrics").text
    assert f'mindcycle_requests_total{{path="{COMPLETIONS}",status="499"}} 3.0' in page
    first.cancelled = True
    wait_for(lambda: not engine._jobs())
    assert engine._meters.read._value.get() == len(first.answer.prompt)  # no prompt of theirs
    engine.stop(0)
    engine.join()


def test_a_stop_lets_answers_end_within_its_grace(served: Served) -> None:
    engine = Engine(SlowModel(served.model, 0.002), rows=4, waiting=2, meters=Meters())  # type: ignore[arg-type]
    seen: list[Piece | Failure] = []
    engine.submit(long_answer(served), seen.append)
    wait_for(lambda: seen)
    engine.stop(30)
    with pytest.raises(Stopping):
        engine.submit(long_answer(served), seen.append)
    health = client_of(served, engine, engine._meters).get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "stopping"})
    engine.join()
    assert isinstance(seen[-1], Piece)
    assert seen[-1].reason == "length"


def test_a_stop_without_grace_says_that_the_answer_is_not_whole(served: Served) -> None:
    engine = Engine(SlowModel(served.model), rows=1, waiting=2, meters=Meters())  # type: ignore[arg-type]
    seen: list[list[Piece | Failure]] = [[], []]
    for each in seen:
        engine.submit(long_answer(served), each.append)
    wait_for(lambda: seen[0])
    engine.stop(0)
    engine.join()
    assert [each[-1] for each in seen] == [
        Failure("the server stopped before the answer was complete")
    ] * 2


@pytest.mark.parametrize("fails_at", [1, 4])
def test_a_failure_ends_its_answers_only(
    served: Served, fails_at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = SlowModel(served.model, 0, fails_at)
    engine = Engine(slow, rows=1, waiting=2, meters=Meters())  # type: ignore[arg-type]
    client = client_of(served, engine, engine._meters)
    response = client.post(COMPLETIONS, json=GOOD)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "the engine failed; the server's log says why"
    text = client.post(COMPLETIONS, json=GOOD).json()["choices"][0]["text"]
    assert text == alone(served, "hello")
    streamed = client.post(COMPLETIONS, json=GOOD | {"stream": True}).text
    assert streamed.endswith("data: [DONE]\n\n")
    engine.stop(0)
    engine.join()
    assert "out of luck" in capsys.readouterr().err


def test_the_engine_is_empty_after_its_answers(client: TestClient, engine: Engine) -> None:
    for _ in range(3):
        client.post(COMPLETIONS, json=GOOD)
    wait_for(lambda: not engine._groups)
    page = client.get("/metrics").text
    assert "mindcycle_running 0.0" in page
    assert "mindcycle_waiting 0.0" in page


def test_serving_imports_nothing_that_trains_or_scores() -> None:
    code = (
        "import sys, serving.run, serving.terminal\n"
        "print([m for m in ('mindspore', 'torch', 'lm_eval', 'prefect', 'datasets')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
