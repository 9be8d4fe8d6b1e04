"""Types of config fields that several stages share. Light to import."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

DType = Literal["fp32", "bf16", "fp16"]
"""Type in which weights are stored."""

MOST = 10**9
"""More than any run has of anything; what computes with more overflows, or never ends."""

Count = Annotated[int, Field(le=MOST)]
"""How many: steps, sequences, tokens, seconds."""

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def size_in_bytes(text: str) -> int:
    """Bytes of a size such as `2GB`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?B)", text.strip().upper())
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if size <= 0:
        raise ValueError("a number above 0 and a unit from KB to TB or KiB to TiB would be right")
    return size


def _checked(text: str) -> str:
    size_in_bytes(text)
    return text


ByteSize = Annotated[str, AfterValidator(_checked)]
"""A size as people write it: 500MB is 500 * 10^6 bytes, 500MiB is 500 * 2^20."""
