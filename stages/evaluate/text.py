"""Text to token ids and back, by the model directory's own tokenizer files."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from artifacts.digest import sha256_file
from artifacts.errors import BadInput
from artifacts.tokenizer_files import (
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER,
    adds_bos,
    load_tokenizer,
    read_tokenizer,
)
from artifacts.validation import plain, shown


class TextCodec:
    """A tokenizer, with the policy on the token that begins a text (BOS).

    BOS is put before a text if `adds_bos` says so; never if the text begins with it already.
    Nothing is ever put behind a text, since answers are scored as its continuation.
    """

    def __init__(self, directory: Path):
        """Raises BadInput naming the file that is missing or broken."""
        self.files = files = read_tokenizer(directory)
        self._tokenizer = load_tokenizer(directory / TOKENIZER)
        self.hash = sha256_file(directory / TOKENIZER)
        self.eos_id = files.special.get("eos_token")
        if self.eos_id is None:
            raise BadInput(f"{directory / 'tokenizer_config.json'}: eos_token is missing")
        bos = files.special.get("bos_token")
        self.prefix_id = self.eos_id if bos is None else bos
        """Conditions the first token of a text that has no context, as in lm-eval."""
        self._bos = bos if adds_bos(self._tokenizer, files.config, bos) else None
        self._special_texts = {
            role: self._tokenizer.id_to_token(id) for role, id in files.special.items()
        }
        self._prefix_text: str = self._tokenizer.id_to_token(self.prefix_id) or ""
        self.chat_template = _chat_template(directory, files.config)

    @property
    def bos(self) -> str | None:
        """The token put before every prompt, if any."""
        return None if self._bos is None else self._prefix_text

    def encode(self, texts: Sequence[str], begins: bool = True) -> list[np.ndarray]:
        """Token ids, int32 [T], of each text; several are encoded in parallel.

        BOS is put before them only where they begin what the model reads.
        """
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        found = []
        for text, encoding in zip(texts, encodings, strict=True):
            ids = encoding.ids
            if begins and self._bos is not None and not text.startswith(self._prefix_text):
                ids = [self._bos, *ids]
            found.append(np.asarray(ids, np.int32))
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of these ids, without special tokens."""
        text: str = self._tokenizer.decode([int(id) for id in ids], skip_special_tokens=True)
        return text

    def render_chat(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """Messages as one prompt, by the chat template. Raises BadInput if it refuses them."""
        if self.chat_template is None:
            raise BadInput("chat_template: the model's tokenizer has none; set it to false")
        try:
            template = _environment().from_string(self.chat_template)
            return template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_texts,
            )
        except Exception as error:  # whatever the template's own code raises
            said = f"{type(error).__name__}: {error}"
            raise BadInput(f"chat_template: the model's template fails: {plain(said)}") from None


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    path = directory / CHAT_TEMPLATE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: is not UTF-8 at byte {error.start}") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        entries = [one for one in template if isinstance(one, dict)]
        template = next((o.get("template") for o in entries if o.get("name") == "default"), None)
    if not isinstance(template, str | None):
        raise BadInput(
            f"{directory / CONFIG}: chat_template is {shown(template)}; a text would be right"
        )
    return template


class _Generation(Extension):
    """`{% generation %}`, by which training marks what is learned: what stands in it, no more."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own way)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    """What transformers gives a chat template, for which templates are written."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own would write < and > as HTML has them."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
