"""Drawing text from a model, token by token, under a sampling profile.

Every request has a random generator of its own, made from the profile's seed and its prompt, so a
text does not depend on what else is in its batch. Given the same seed it is the same at any size.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from stages.evaluate.backends import Backend
from stages.evaluate.rows import padded
from stages.evaluate.sampling import Sampling


@dataclass
class Wanted:
    """One text to draw."""

    prompt: np.ndarray
    """int32 [T], at least one token."""
    stop: tuple[str, ...]
    """Texts at which it ends; they are not part of it."""
    repeat: int = 0
    """Counts equal prompts, so that the second draw differs from the first."""
    ids: list[int] = field(default_factory=list)
    """What has been drawn."""


def draw(
    backend: Backend,
    batch: Sequence[Wanted],
    sampling: Sampling,
    eos_ids: Collection[int],
    max_length: int,
    decode: Callable[[Sequence[int]], str],
) -> list[str]:
    """Texts for one batch of prompts.

    A text ends before an end-of-sequence token or a stop text, after `sampling.max_tokens`, or
    when prompt and text fill `max_length`.
    """
    generators = [generator_for(sampling.seed, wanted.prompt, wanted.repeat) for wanted in batch]
    texts = [""] * len(batch)
    open_rows = list(range(len(batch)))
    while open_rows:
        rows = [
            np.concatenate([batch[i].prompt, np.array(batch[i].ids, np.int32)]) for i in open_rows
        ]
        logits_BV = backend.next_logits(*padded(rows))
        still_open = []
        for logits_V, i in zip(logits_BV, open_rows, strict=True):
            wanted = batch[i]
            seen = np.append(wanted.prompt, np.array(wanted.ids, np.int32))
            token = next_token(logits_V, sampling, generators[i], seen)
            if token in eos_ids:
                continue
            wanted.ids.append(token)
            texts[i], stopped = _cut(decode(wanted.ids), wanted.stop)
            length = len(wanted.prompt) + len(wanted.ids)
            if not stopped and len(wanted.ids) < sampling.max_tokens and length < max_length:
                still_open.append(i)
        open_rows = still_open
    return texts


def next_token(
    logits_V: np.ndarray,
    sampling: Sampling,
    generator: np.random.Generator,
    seen: Sequence[int] | np.ndarray = (),
) -> int:
    """One token after those `seen` (prompt and text): the most likely one after the repetition
    penalty, or drawn after that, temperature, top_k and top_p in this order."""
    if sampling.repetition_penalty != 1:
        logits_V, known = logits_V.copy(), np.unique(np.asarray(seen, np.int64))
        values, penalty = logits_V[known], sampling.repetition_penalty
        logits_V[known] = np.where(values > 0, values / penalty, values * penalty)
    if sampling.greedy:
        return int(logits_V.argmax())
    # From the highest down, so that what a tiny temperature makes too large is only ever -inf.
    below_V = logits_V.astype(np.float64) - logits_V.max()
    with np.errstate(over="ignore"):
        scaled = below_V / sampling.temperature
    order = np.argsort(-scaled, kind="stable")  # equals keep the vocabulary's order
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    cumulative = np.cumsum(weights / weights.sum())
    # The token that reaches top_p still belongs to the fewest that hold that share.
    kept = min(int(np.searchsorted(cumulative, sampling.top_p, side="left")) + 1, len(order))
    cumulative = cumulative[:kept]
    point = generator.random() * cumulative[-1]
    return int(order[min(int(np.searchsorted(cumulative, point, side="right")), kept - 1)])


def generator_for(seed: int, prompt: np.ndarray, repeat: int = 0) -> np.random.Generator:
    """The random numbers of one text: the same for the same seed, prompt and repetition."""
    text = f"{seed}/{repeat}/".encode() + prompt.astype("<i4").tobytes()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:16], "little"))


def _cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first stop text, and whether there was one."""
    places = [place for place in (text.find(one) for one in stop) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)
