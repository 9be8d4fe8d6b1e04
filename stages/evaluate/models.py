"""What is asked: an engine of ours, or one of lm-eval's own models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from artifacts.errors import BadInput
from artifacts.validation import plain
from stages.evaluate import backends
from stages.evaluate.config import EvaluateConfig, LmEvalModel
from stages.evaluate.kept import Kept
from stages.evaluate.lm import EngineLM
from stages.evaluate.text import TextCodec


@dataclass(frozen=True)
class Model:
    """A model that lm-eval can ask, and what the report says of it."""

    lm: LM
    name: str
    """As lm-eval's results call it."""
    backend: str
    dtype: str
    max_length: int


def load_model(
    config: EvaluateConfig,
    kind: str,
    directory: Path,
    adapter: Path | None,
    codec: TextCodec,
    kept: Kept,
) -> Model:
    """The model of a directory, `kind` as its manifest says. Raises BadInput if it is not whole."""
    if config.lm_eval_model is not None:
        return _theirs(config, config.lm_eval_model, directory, adapter)
    backend = backends.load(
        kind, directory, adapter, config.device, config.batch_size, config.bundle_adapter
    )
    lm = EngineLM(backend, codec, config.sampling, config.batch_size, config.max_length, kept)
    return Model(lm, f"mindcycle-{backend.name}", backend.name, backend.dtype, lm.max_length)


def _theirs(
    config: EvaluateConfig, model: LmEvalModel, directory: Path, adapter: Path | None
) -> Model:
    from lm_eval.api.registry import get_model

    args: dict[str, Any] = {**model.args, "pretrained": str(directory)}
    if adapter is not None:
        args["peft"] = str(adapter)
    settings: dict[str, Any] = {"batch_size": config.batch_size}
    if config.max_length is not None:
        settings["max_length"] = config.max_length
    try:
        lm = get_model(model.name).create_from_arg_obj(args, settings)
    except Exception as error:  # whatever a model of lm-eval raises where it cannot start
        said = plain(f"{type(error).__name__}: {error}".splitlines()[0])
        raise BadInput(f"lm_eval_model: {model.name} cannot be loaded: {said}") from None
    longest = getattr(lm, "max_length", None)
    dtype = str(args.get("dtype", "auto"))
    return Model(lm, model.name, f"lm-eval {model.name}", dtype, int(longest or 1))
