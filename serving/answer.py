"""One answer while it is being drawn: its ids, its text, and why it ended."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from artifacts.errors import MindCycleError
from serving.streaming import TextStream
from stages.evaluate.drawing import generator_for, next_token
from stages.evaluate.sampling import Sampling

Reason = Literal["stop", "length"]
"""Why an answer ended, in OpenAI's words: end-of-sequence or a stop text; or the length allowed."""


class Damaged(MindCycleError):
    """The model gives no numbers."""


class Answer:
    """Draws token after token under a sampling profile, as the evaluate stage does."""

    def __init__(
        self,
        prompt: np.ndarray,
        sampling: Sampling,
        eos_ids: Sequence[int],
        longest: int,
        decode: Callable[[Sequence[int]], str],
        adapter: str | None = None,
    ):
        """`prompt` is int32 [T]; prompt and answer together have at most `longest` tokens."""
        self.prompt, self.adapter = prompt, adapter
        self.ids: list[int] = []
        """What has been drawn, end-of-sequence left out."""
        self.reason: Reason | None = None
        """None while it goes on."""
        self._sampling, self._eos_ids = sampling, frozenset(eos_ids)
        self._allowed = min(sampling.max_tokens, longest - len(prompt))
        self._random = generator_for(sampling.seed, prompt)
        self._stream = TextStream(decode, sampling.stop)

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt) + len(self.ids)

    def take(self, logits_V: np.ndarray) -> str:
        """Draw the next token from its logits; returns the text that has become certain.

        Raises Damaged if they are no numbers.
        """
        if np.isnan(logits_V).any():
            raise Damaged(
                "the model's logits are not numbers, as of damaged weights; "
                "mindcycle verify says whether a file has changed"
            )
        seen = np.append(self.prompt, np.array(self.ids, np.int32))
        token = next_token(logits_V, self._sampling, self._random, seen)
        if token in self._eos_ids:
            self.reason = "stop"
            return self._stream.finish()
        self.ids.append(token)
        text = self._stream.push(token)
        if self._stream.stopped:
            self.reason = "stop"
        elif len(self.ids) == self._allowed:
            text += self._stream.finish()
            self.reason = "stop" if self._stream.stopped else "length"
        return text
