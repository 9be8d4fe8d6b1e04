"""`mindcycle generate` and `mindcycle chat`: text on the terminal as it comes."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from artifacts.errors import BadInput
from artifacts.wording import counted
from serving.answer import Answer
from serving.batch import Batch, Prefill
from serving.bundle import Served, find_bundle
from stages.evaluate.sampling import Sampling

ADAPTER = "adapter"
"""The terminal has one at most, so its name is never seen."""
UNSAID = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127], "\N{REPLACEMENT CHARACTER}")
"""Control characters: in a model's text they could move the cursor or set the window's title."""


def load(
    reference: str, store: Path, adapter: Path | None, threads: int
) -> tuple[Served, str | None]:
    """The bundle, and the name of its adapter if there is one. Raises BadInput."""
    adapters = {} if adapter is None else {ADAPTER: adapter}
    served = Served(find_bundle(reference, store), threads, adapters)
    return served, None if adapter is None else ADAPTER


def generate(served: Served, adapter: str | None, prompt: str, sampling: Sampling) -> None:
    """Print the text that follows `prompt`, and to stderr how fast it came."""
    _show(served, served.answer(served.encode(prompt), sampling, adapter))


def chat(served: Served, adapter: str | None, sampling: Sampling) -> None:
    """Ask for messages and print answers until the input ends. Ctrl-C cuts an answer short."""
    served.chat_prompt([{"role": "user", "content": "Hello"}])  # refuse before anyone has typed
    messages: list[dict[str, str]] = []
    print("Ctrl-D ends the chat, an empty line begins a new one.", file=sys.stderr)
    while True:
        try:
            text = input("> ")
        except EOFError:
            return
        if not text.strip():
            messages = []
            print("(a new chat)", file=sys.stderr)
            continue
        messages.append({"role": "user", "content": text})
        try:
            answer = served.answer(_fitting(served, messages, sampling), sampling, adapter)
        except BadInput as error:
            messages.pop()
            print(error, file=sys.stderr)
            continue
        with _interruptible() as interrupted:
            text = _show(served, answer, interrupted)
        messages.append({"role": "assistant", "content": text})


def _fitting(served: Served, messages: list[dict[str, str]], sampling: Sampling) -> np.ndarray:
    """The chat as token ids, after the oldest turns have been dropped that leave no room.

    Room is as much as the profile writes at most, but no more than a quarter of all there is: some
    profiles write as much as a model can hold.
    """
    ids = served.encode(served.chat_prompt(messages))
    room = min(sampling.max_tokens, served.longest // 4)
    while len(ids) + room > served.longest and len(messages) > 1:
        del messages[:2]
        print("(the oldest question and answer no longer fit)", file=sys.stderr)
        ids = served.encode(served.chat_prompt(messages))
    return ids


def draw(served: Served, answer: Answer) -> Iterator[str]:
    """The answer's text in pieces, one a token, some of them empty."""
    prefill = Prefill(answer.prompt, answer.adapter)
    while (logits_V := prefill.step(served.model)) is None:
        pass
    batch = Batch(answer.adapter)
    batch.join(prefill)
    yield answer.take(logits_V)
    while answer.reason is None:
        yield answer.take(batch.step(served.model, np.array(answer.ids[-1:]))[0])


def _show(served: Served, answer: Answer, interrupted: Sequence[int] = ()) -> str:
    """Print an answer while it is drawn; returns its text, as far as it came."""
    pieces: list[str] = []
    begin = first = time.perf_counter()
    for piece in draw(served, answer):
        if not pieces:
            first = time.perf_counter()
        pieces.append(piece)
        print(piece.translate(UNSAID), end="", flush=True)
        if interrupted:
            break
    print()
    print(_speed(len(answer.prompt), len(answer.ids), first - begin, first), file=sys.stderr)
    return "".join(pieces)


@contextlib.contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Within it Ctrl-C is noted in the list, and ends nothing."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _speed(prompt: int, drawn: int, waited: float, first: float) -> str:
    said = f"{counted(prompt, 'token')} read in {waited * 1000:.0f} ms"
    if drawn > 1:
        each = (drawn - 1) / (time.perf_counter() - first)
        said += f", {drawn} written at {each:.0f} tokens/s"
    return f"({said})"
