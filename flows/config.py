"""From a YAML file and overrides to a checked config, all problems in one go."""

import difflib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from artifacts.errors import BadInput
from artifacts.validation import sentences, shown, unfit
from artifacts.yaml_text import read_yaml
from flows.overrides import apply_overrides

Model = TypeVar("Model", bound=BaseModel)


def load_config(model: type[Model], path: Path, overrides: Sequence[str] = ()) -> Model:
    """Read, override and check a config file. Raises BadInput with every problem found."""
    data = read_yaml_file(path)
    apply_overrides(data, overrides)
    return check_config(model, data)


def read_yaml_file(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises BadInput."""
    data = read_yaml(path)
    if data is None:
        raise BadInput(f"{path}: is empty, a config is a mapping of sections")
    if not isinstance(data, dict):
        raise BadInput(f"{path}: must be a mapping of sections, not {type(data).__name__}")
    return data


def check_config(model: type[Model], data: dict[str, Any]) -> Model:
    """Check plain data against a model. Raises BadInput: field, value, what would be right."""
    try:
        config = model.model_validate(data)
    except ValidationError as error:
        texts = sentences(error, data=data)
        for i, problem in enumerate(error.errors()):
            if problem["type"] == "extra_forbidden":
                texts[i] += _hint(model, problem["loc"])
        # A check over several sections names its fields itself.
        lines = "\n".join(text.removeprefix("config: ") for text in texts).splitlines()
        raise BadInput(*dict.fromkeys(lines)) from None
    values = config.model_dump()
    if problems := [*unfit(values), *_truths_for_numbers(data, values)]:
        raise BadInput(*problems)
    return config


def _truths_for_numbers(data: Any, values: Any, where: str = "") -> Iterator[str]:
    """A sentence for every true and false in `data` that pydantic took for 1 and 0."""
    if isinstance(data, bool) and type(values) in (int, float):
        yield f"{where}: is {shown(data)}; a number would be right"
    elif isinstance(data, dict) and isinstance(values, dict):
        for key in data.keys() & values.keys():
            yield from _truths_for_numbers(data[key], values[key], f"{where}.{key}".lstrip("."))
    elif isinstance(data, list) and isinstance(values, list | tuple):
        for i, (item, value) in enumerate(zip(data, values, strict=False)):
            yield from _truths_for_numbers(item, value, f"{where}.{i}")


def _hint(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    known = sorted(
        {name for kind in _models_at(model, location[:-1]) for name in kind.model_fields}
    )
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(known)}" if known else ""


def _models_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The models that may stand at an error's location, for the names of their fields."""
    candidates: list[Any] = [model]
    for part in location:
        deeper: list[Any] = []
        for kind in candidates:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                if part in kind.model_fields:
                    deeper += _alternatives(kind.model_fields[str(part)].annotation)
            elif get_origin(kind) in (list, tuple, dict, set):
                deeper += [option for arg in get_args(kind) for option in _alternatives(arg)]
        # A part that leads nowhere is a union's tag, which pydantic puts into the path.
        candidates = deeper or [kind for kind in candidates if _tagged(kind, part)] or candidates
    return [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _alternatives(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [option for arg in get_args(annotation) for option in _alternatives(arg)]
    return [annotation]


def _tagged(kind: Any, tag: int | str) -> bool:
    """Whether a model is the branch of a union that `tag` chooses."""
    return (
        isinstance(kind, type)
        and issubclass(kind, BaseModel)
        and any(tag in get_args(field.annotation) for field in kind.model_fields.values())
    )
