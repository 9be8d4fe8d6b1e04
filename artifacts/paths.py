"""Names of files that come from outside: none may lead out of the directory they stand in."""

from pathlib import PurePosixPath

LONGEST_NAME, LONGEST_PATH = 255, 1000
"""Bytes. What file systems hold; on a longer one every look at the disk is an error."""


def is_inside(value: object) -> bool:
    """Whether `value` is the relative path of something below a directory, on any system."""
    if not isinstance(value, str) or not value.isprintable() or "\\" in value:
        return False
    path = PurePosixPath(value)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        return False
    longest = max(len(part.encode()) for part in path.parts)
    return longest <= LONGEST_NAME and len(value.encode()) <= LONGEST_PATH


def is_name(value: object) -> bool:
    """Whether `value` names something in a directory itself."""
    return is_inside(value) and PurePosixPath(str(value)).name == value
