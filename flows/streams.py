"""Standard streams that take every text, even where the shell has closed them."""

import io
import os
import sys


def open_streams() -> None:
    """Put /dev/null in the place of a closed stream; print `?` for what a locale cannot write."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
