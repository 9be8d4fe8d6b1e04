"""The errors a user may see, each with the exit code it ends the command with."""


class MindCycleError(Exception):
    """Base of every error that is the user's to read; shown as one sentence, never a traceback."""

    exit_code = 1


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
        shown = problems[:MOST_SHOWN] if more > 1 else problems
        super().__init__("\n".join([*shown, *([f"and {more} problems more"] if more > 1 else [])]))


class StageFailed(MindCycleError):
    """Work had begun and could not be finished; what is whole stays whole."""

    exit_code = 1


REJECTED = 3
"""Exit code of a command whose release the gate rejected. Not an error: the gate did its work."""
