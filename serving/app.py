"""The endpoint: completions and chat as OpenAI's clients ask, models, health and metrics."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from artifacts.errors import BadInput, MindCycleError
from artifacts.validation import plain
from serving.bundle import Served
from serving.engine import Busy, Engine, Failure, Job, Piece, Stopping
from serving.meters import Meters
from serving.sampling import adapted
from serving.wire import ChatRequest, CompletionRequest, Reply, error_object, read_request
from stages.evaluate.sampling import Sampling

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")
STATUS: dict[type[Exception], int] = {BadInput: 400, Busy: 429, Stopping: 503}
LEFT = 499
"""Status when the client has left; it stands in the figures only."""

Events = asyncio.Queue[Piece | Failure | None]
"""None once the client has left."""


@dataclass(frozen=True)
class Limits:
    """What one request may ask."""

    body_bytes: int = 1 << 20
    max_tokens: int | None = None
    """Longest answer, tokens; None leaves it to the model's longest sequence. Who asks for no
    length gets at most the sampling profile's."""


class Server:
    """Handlers over one bundle and its engine."""

    def __init__(
        self,
        served: Served,
        engine: Engine,
        name: str,
        adapters: Sequence[str],
        sampling: Sampling,
        limits: Limits,
        meters: Meters,
    ):
        """The bundle answers under `name`, and with an adapter under the adapter's name."""
        self._served, self._engine, self._meters = served, engine, meters
        self._models: dict[str, str | None] = {name: None, **{each: each for each in adapters}}
        self._name, self._sampling, self._limits = name, sampling, limits
        self._started = int(time.time())

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/v1/models/{name:path}", self.one_model),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
            ],
            middleware=[Middleware(Counted, meters=self._meters)],
            exception_handlers={
                MindCycleError: _refused,  # type: ignore[dict-item]
                HTTPException: _http_error,  # type: ignore[dict-item]
                ClientDisconnect: _left,  # type: ignore[dict-item]
                Exception: _broken,
            },
        )

    async def completions(self, request: Request) -> Response:
        """Text that goes on from a prompt."""
        asked = read_request(CompletionRequest, await self._body(request))
        return await self._respond(request, asked, chat=False)

    async def chat(self, request: Request) -> Response:
        """The assistant's turn in a chat."""
        asked = read_request(ChatRequest, await self._body(request))
        return await self._respond(request, asked, chat=True)

    async def models(self, request: Request) -> Response:
        """The bundle and its adapters."""
        return JSONResponse({"object": "list", "data": [*map(self._entry, self._models)]})

    async def one_model(self, request: Request) -> Response:
        """One of them, by name."""
        name = request.path_params["name"]
        self._adapter(name)
        return JSONResponse(self._entry(name))

    async def health(self, request: Request) -> Response:
        """200 while requests are taken."""
        if self._engine.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Figures for Prometheus."""
        return Response(self._meters.page(), media_type="text/plain; version=0.0.4")

    async def _respond(
        self, request: Request, asked: CompletionRequest | ChatRequest, chat: bool
    ) -> Response:
        adapter = self._adapter(asked.model)
        # Long texts take a while to encode; other answers go on meanwhile.
        ids = await asyncio.to_thread(self._prompt, asked)
        answer = self._served.answer(ids, self._sampling_for(asked, len(ids)), adapter)
        events: Events = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(event: Piece | Failure) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody listens
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = self._engine.submit(answer, deliver)
        reply = Reply(asked.model, chat)
        if asked.stream:
            lines = _stream(job, events, reply, asked.include_usage)
            return StreamingResponse(lines, media_type="text/event-stream")
        return await _whole(request, job, events, reply)

    def _prompt(self, asked: CompletionRequest | ChatRequest) -> np.ndarray:
        if isinstance(asked, CompletionRequest):
            if isinstance(asked.prompt, str):
                return self._served.encode(asked.prompt)
            return self._served.ids(asked.prompt)
        messages = [each.model_dump(exclude_none=True) for each in asked.messages]
        return self._served.encode(self._served.chat_prompt(messages))

    def _sampling_for(self, asked: CompletionRequest | ChatRequest, prompt: int) -> Sampling:
        """The server's profile with the request's values, if the answer may become so long."""
        changes = asked.sampling()
        wanted, most = changes["max_tokens"], self._limits.max_tokens
        if wanted is not None and prompt + wanted > self._served.longest:
            raise BadInput(
                f"max_tokens: is {wanted} after a prompt of {prompt} tokens; "
                f"both together may have {self._served.longest}"
            )
        if wanted is not None and most is not None and wanted > most:
            raise BadInput(f"max_tokens: is {wanted}; at most {most} are served")
        if wanted is None and most is not None:
            changes["max_tokens"] = min(self._sampling.max_tokens, most)
        return adapted(self._sampling, changes)

    def _adapter(self, name: str) -> str | None:
        if name not in self._models:
            known = ", ".join(self._models)
            named = plain(name) or "an empty name"
            raise HTTPException(404, f"model: {named} is not served; there is {known}")
        return self._models[name]

    def _entry(self, name: str) -> dict[str, Any]:
        entry = {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "mindcycle",
            "max_model_len": self._served.longest,
        }
        return entry if self._models[name] is None else entry | {"parent": self._name}

    async def _body(self, request: Request) -> bytes:
        """The body, read no further than it may be long."""
        most, body = self._limits.body_bytes, bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise HTTPException(413, f"body: is longer than {most} bytes, which are allowed")
        return bytes(body)


async def _whole(request: Request, job: Job, events: Events, reply: Reply) -> Response:
    """The answer in one object."""
    texts: list[str] = []
    # Beside the events: the first may be long in coming, and who has left must not keep a place.
    watching = asyncio.create_task(_tell_of_leaving(request, events))
    try:
        async for event in _until_last(job, events):
            if event is None:
                return Response(status_code=LEFT)
            if isinstance(event, Failure):
                return JSONResponse(error_object(event.message, "server_error"), 503)
            texts.append(event.text)
            reason = event.reason
    finally:
        watching.cancel()
    answer = job.answer
    whole = reply.whole("".join(texts), reason or "stop", len(answer.prompt), len(answer.ids))
    return JSONResponse(whole)


async def _stream(
    job: Job, events: Events, reply: Reply, include_usage: bool
) -> AsyncIterator[str]:
    """The answer as server-sent events."""
    for value in reply.opening():
        yield _line(value)
    async for event in _until_last(job, events):
        if event is None:  # Starlette itself ends a stream that nobody reads
            return
        if isinstance(event, Failure):
            yield _line(error_object(event.message, "server_error"))
            return
        yield _line(reply.piece(event.text, event.reason))
    if include_usage:
        yield _line(reply.counted(len(job.answer.prompt), len(job.answer.ids)))
    yield "data: [DONE]\n\n"


async def _tell_of_leaving(request: Request, events: Events) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    events.put_nowait(None)


async def _until_last(job: Job, events: Events) -> AsyncIterator[Piece | Failure | None]:
    """Events up to the last one. Whoever stops listening before cancels the job."""
    try:
        while True:
            event = await events.get()
            yield event
            if not isinstance(event, Piece) or event.reason is not None:
                return
    finally:
        job.cancelled = True


def _line(value: dict[str, Any]) -> str:
    # In ASCII: some clients take U+2028 and U+0085 for ends of lines.
    return f"data: {json.dumps(value)}\n\n"


async def _refused(request: Request, error: MindCycleError) -> Response:
    status = STATUS.get(type(error), 500)
    kind = "invalid_request_error" if status == 400 else "server_error"
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse(error_object(str(error), kind), status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    said = {
        404: f"{request.url.path}: is not served; there are {', '.join(PATHS)}",
        405: f"{request.url.path}: does not take {request.method}",
    }
    generic = error.detail in ("Not Found", "Method Not Allowed")
    message = said[error.status_code] if generic else error.detail
    body = error_object(message, "invalid_request_error")
    return JSONResponse(body, error.status_code, error.headers)


async def _left(request: Request, error: ClientDisconnect) -> Response:
    """The client left before it had sent its request whole; nobody reads this."""
    return Response(status_code=LEFT)


async def _broken(request: Request, error: Exception) -> Response:
    return JSONResponse(error_object("the server failed; its log says why", "server_error"), 500)


class Counted:
    """Counts every request by path and status, and how long it took."""

    def __init__(self, app: ASGIApp, meters: Meters):
        self._app, self._meters = app, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), LEFT

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        path = scope["path"] if scope["path"] in PATHS else "other"
        try:
            await self._app(scope, receive, noting)
        finally:
            self._meters.requests.labels(path, str(status)).inc()
            self._meters.seconds.labels(path).observe(time.perf_counter() - begin)
