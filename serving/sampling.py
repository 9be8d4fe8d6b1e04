"""A sampling profile of the evaluate stage, with what one request changes in it."""

from typing import Any

from pydantic import ValidationError

from artifacts.errors import BadInput
from artifacts.validation import sentences
from stages.evaluate.sampling import Sampling, profile


def named(name: str) -> Sampling:
    """The profile of this name or file. Raises BadInput if there is none, or it is wrong."""
    try:
        return profile(name)
    except ValidationError as error:
        raise BadInput(*sentences(error, "sampling")) from None
    except ValueError as error:
        raise BadInput(f"sampling: is {name!r}; {error}") from None


def adapted(base: Sampling, changes: dict[str, Any]) -> Sampling:
    """`base` with other values; a temperature says whether anything is drawn. Raises BadInput.

    None means unchanged, as in OpenAI's requests.
    """
    changes = {key: value for key, value in changes.items() if value is not None}
    if "temperature" in changes:
        changes["do_sample"] = changes["temperature"] > 0
    try:
        return Sampling.model_validate(base.model_dump() | changes)
    except ValidationError as error:
        raise BadInput(*sentences(error, "sampling")) from None
