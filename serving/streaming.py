"""Token ids become text as they come: never half a character, never a stop text's beginning."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no whole character yet."""


class TextStream:
    """The text of one answer. What `push` and `finish` return, joined, is the whole text.

    A character that spreads over several tokens is held back until it is whole, and whatever could
    be the beginning of a stop text until it is none.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()):
        self.stopped = False
        """Whether a stop text has come; it is not part of the text."""
        self._decode, self._stop = decode, tuple(stop)
        self._ids: list[int] = []
        self._context = self._said = 0
        self._held = ""

    def push(self, id: int) -> str:
        """The text that has become certain with one more token."""
        self._ids.append(id)
        text = self._fresh()
        if text.endswith(REPLACEMENT):
            return ""
        self._move_on()
        return self._release(text)

    def finish(self) -> str:
        """What is left when no token follows."""
        text = "" if self.stopped else self._release(self._fresh())
        held, self._held = self._held, ""
        self._move_on()
        return text if self.stopped else text + held

    def _fresh(self) -> str:
        """What the ids since `_said` add.

        A few ids before them are decoded as well: some decoders drop a text's first space.
        """
        before = self._decode(self._ids[self._context : self._said])
        return self._decode(self._ids[self._context :])[len(before) :]

    def _move_on(self) -> None:
        self._context, self._said = self._said, len(self._ids)

    def _release(self, text: str) -> str:
        text = self._held + text
        places = [place for place in map(text.find, self._stop) if place >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
