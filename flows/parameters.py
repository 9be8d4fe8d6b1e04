"""What a deployment's form asks, beside the config's name: the values that runs change most often.

Each field is a field of the config, under its path, with its type, choices, bounds and help taken
from there, so that the form cannot say anything else than the config does. Empty means: as in the
config. Everything else is changed under `overrides`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
)
from pydantic.fields import FieldInfo

from flows.lifecycle import RunConfig

CHANGEABLE = (
    "corpus.tokenizer.vocab_size",
    "corpus.seed",
    "pretrain.steps",
    "pretrain.optimizer.learning_rate",
    "pretrain.batch.sequence_length",
    "pretrain.parallel.data",
    "pretrain.checkpoint.every",
    "pretrain.seed",
    "pretrain.device",
    "convert.dtype",
    "evaluate.batch_size",
    "evaluate.max_length",
    "evaluate.overlong",
    "evaluate.device",
    "finetune.template",
    "finetune.lora.rank",
    "finetune.optimizer.learning_rate",
    "finetune.batch.global_size",
    "finetune.seed",
    "finetune.device",
    "gate.approval",
    "export.operators",
    "export.precision",
    "prove.longest",
    "baseline",
)


class Changes(BaseModel):
    """Values that replace the config's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _given(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is empty is left out: Prefect's form refuses the null of a field that it has shown
        but nobody has filled, and this is where the form's first values come from."""
        return {name: value for name, value in values(self).items() if value is not None}

    def overrides(self) -> list[str]:
        """As `key.path=value`."""
        values = self.model_dump(mode="json")
        titles = {name: field.title for name, field in type(self).model_fields.items()}
        return [f"{titles[name]}={json.dumps(value)}" for name, value in values.items()]


def changes_of(*sections: str) -> type[Changes]:
    """The changes that concern some sections of a config, all of them if none is named."""
    paths = [path for path in CHANGEABLE if not sections or path.partition(".")[0] in sections]
    name = "".join(section.capitalize() for section in sections) + "Changes"
    fields: dict[str, Any] = {path.replace(".", "_"): _field(path) for path in paths}
    return create_model(name, __base__=Changes, **fields)


def named_configs(clone: Path) -> list[str]:
    """The configs that a clone comes with, as paths relative to it."""
    return [path.relative_to(clone).as_posix() for path in sorted(clone.glob("configs/*.yaml"))]


def _field(path: str) -> tuple[Any, Any]:
    """A config's field as an optional one: (type, default)."""
    found = _find(path.split("."))
    kind: Any = found.annotation
    for constraint in found.metadata:
        kind = Annotated[kind, constraint]
    about = found.description
    return kind | None, Field(default=None, title=path, description=about, json_schema_extra=_plain)


def _plain(schema: dict[str, Any]) -> None:
    """Prefect's form leaves an empty field out, so that it need not offer null as a choice."""
    options = [option for option in schema.pop("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        schema.update(options[0])
    elif options:
        schema["anyOf"] = options
    schema.pop("default", None)


def _find(parts: Sequence[str]) -> FieldInfo:
    model: Any = RunConfig
    for part in parts[:-1]:
        model = model.model_fields[part].annotation
    field: FieldInfo = model.model_fields[parts[-1]]
    return field
