"""The errors a user may see, each with the exit code it ends the command with."""

import errno
import re


class MindCycleError(Exception):
    """Base of every error that is the user's to read; shown as one sentence, never a traceback."""

    exit_code = 1


_LONG_WORD = re.compile(r"(\S{100})\S{100,}(\S{100})")
"""Nobody reads it to its end, and most paths are shorter."""


def readable(text: str) -> str:
    """A sentence without the middle of its very long words."""
    return _LONG_WORD.sub(r"\1 ... \2", text)


MOST_SHOWN = 25
"""Problems shown: a screen of them. A weight file of another model has one a tensor."""


class BadInput(MindCycleError):
    """The input is wrong, nothing was done. Names the field or file, the value, and what is right.

    Holds one or several problems, so that a user corrects all of them in one go; its text shows the
    first ones and counts the rest.
    """

    exit_code = 2

    def __init__(self, *problems: str):
        self.problems = list(problems)
        more = len(problems) - MOST_SHOWN
        shown = [readable(each) for each in problems]
        shown = shown[:MOST_SHOWN] if more > 1 else shown
        super().__init__("\n".join([*shown, *([f"and {more} problems more"] if more > 1 else [])]))


class StageFailed(MindCycleError):
    """Work had begun and could not be finished; what is whole stays whole."""

    exit_code = 1


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A disk, a quota or a file's size limit is used up."""


def said_of(error: OSError, place: object) -> str:
    """What the system says, about the file it names or else about `place`."""
    about = error.filename2 or error.filename or place
    more = "; free some space, then the same command goes on from here"
    said = error.strerror or error
    return readable(f"{about}: {said}{more if error.errno in FULL else ''}")


REJECTED = 3
"""Exit code of a command whose release the gate rejected. Not an error: the gate did its work."""
