"""OpenAI's requests and responses, as far as they are served.

A parameter that is not served may be given with the value that changes nothing; any other is
refused, since an answer that silently ignores it would look right.
"""

import time
import uuid
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from artifacts.errors import BadInput
from artifacts.json_files import json_name, parse_json
from artifacts.validation import sentences

MOST_STOPS = 16
MOST_MESSAGES = 1000


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _content(value: Any) -> Any:
    """Parts of text as one text; other kinds of parts are left for the type to refuse."""
    if isinstance(value, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in value
    ):
        return "".join(part["text"] for part in value)
    return value


class StreamOptions(BaseModel):
    """What a stream says besides text."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class _Request(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str
    max_tokens: int | None = Field(None, gt=0)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None,
        Field(max_length=MOST_STOPS),
        BeforeValidator(_stops),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    n: Literal[1] | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> dict[str, Any]:
        """What it changes in the server's sampling profile."""
        return self.model_dump(
            include={"max_tokens", "temperature", "top_p", "top_k", "seed", "stop"}
        )


def _one_prompt(value: Any) -> Any:
    """A list of one prompt is that prompt; OpenAI's clients often send one."""
    if not isinstance(value, list):
        return value
    if not value:
        raise ValueError("is empty; a text, or a list of token ids, would be right")
    if any(isinstance(one, str | list) for one in value):
        if len(value) > 1:
            raise ValueError(f"holds {len(value)} prompts; one a request is answered")
        return value[0]
    return value


class CompletionRequest(_Request):
    """`POST /v1/completions`."""

    prompt: Annotated[str | list[int], BeforeValidator(_one_prompt)]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    logprobs: None = None
    suffix: Literal[""] | None = None


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None


class ChatRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: int | None = Field(None, gt=0)
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None

    def sampling(self) -> dict[str, Any]:
        changes = super().sampling()
        if self.max_completion_tokens is not None:
            changes["max_tokens"] = self.max_completion_tokens
        return changes


R = TypeVar("R", bound=_Request)


def read_request(kind: type[R], body: bytes) -> R:
    """The request in a body. Raises BadInput naming everything that is wrong."""
    value = parse_json(body, "body")
    if not isinstance(value, dict):
        raise BadInput(f"body: must hold an object, not {json_name(value)}")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise BadInput(*sentences(error, data=value)) from None


class Reply:
    """The objects that answer one request, whole or in pieces."""

    def __init__(self, model: str, chat: bool):
        self._chat = chat
        self._about = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, text: str, reason: str, prompt: int, drawn: int) -> dict[str, Any]:
        """An answer that is not streamed."""
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        kind = "chat.completion" if self._chat else "text_completion"
        return self._object(kind, said, reason) | {"usage": usage(prompt, drawn)}

    def opening(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        if not self._chat:
            return []
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self._object("chat.completion.chunk", delta, None)]

    def piece(self, text: str, reason: str | None) -> dict[str, Any]:
        """A piece of a stream."""
        if self._chat:
            delta = {"content": text} if text else {}
            return self._object("chat.completion.chunk", {"delta": delta}, reason)
        return self._object("text_completion", {"text": text}, reason)

    def counted(self, prompt: int, drawn: int) -> dict[str, Any]:
        """The piece that gives the number of tokens."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._about, "object": kind, "choices": [], "usage": usage(prompt, drawn)}

    def _object(self, kind: str, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return {**self._about, "object": kind, "choices": [choice]}


def usage(prompt: int, drawn: int) -> dict[str, int]:
    """Tokens read and drawn."""
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def error_object(message: str, kind: str) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
