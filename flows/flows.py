"""The flows that Prefect knows: the lifecycle, and one for each stage with what it needs.

A stage's flow runs the steps before it only where their artifacts are not there yet.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.states import State
from pydantic import Field

from flows.lifecycle import load_work
from flows.prefect_run import run_as_flow

Config = Annotated[
    str,
    Field(
        min_length=1,
        title="Config file",
        description="YAML file of the run, relative to where MindCycle was cloned.",
    ),
]
Overrides = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^=]+=")], ...],
    Field(
        title="Overrides",
        description="Values that replace the file's, each as key.path=value, "
        "such as pretrain.steps=200.",
    ),
]
Store = Annotated[
    str | None,
    Field(title="Store", description="Directory of the artifacts; by default the config's."),
]
Inputs = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^=]+=.")], ...],
    Field(
        title="Inputs",
        description="Artifacts to use instead of making them, each as role=directory "
        "or role=first digits of a digest.",
    ),
]
Model = Annotated[
    Literal["base", "tuned", "bundle"],
    Field(
        title="Model",
        description="Whose scores: the pretrained model, the fine-tuned one, or the ONNX bundle.",
    ),
]
QUICKSTART = "configs/quickstart.yaml"
# What is done is known by the manifests in the store, not by results that Prefect keeps.
OPTIONS: dict[str, Any] = {"persist_result": False}


def _run(
    target: str | None,
    config: str,
    overrides: tuple[str, ...],
    store: str | None,
    inputs: tuple[str, ...] = (),
) -> State[None]:
    where = Path(store) if store else None
    return run_as_flow(load_work(Path(config), overrides, where, target, inputs))


@flow(**OPTIONS)
def lifecycle(
    config: Config = QUICKSTART, overrides: Overrides = (), store: Store = None
) -> State[None]:
    """Text to a released model: every stage in order, up to the release or the gate's rejection."""
    return _run(None, config, overrides, store)


@flow(**OPTIONS)
def corpus(
    config: Config = QUICKSTART, overrides: Overrides = (), store: Store = None
) -> State[None]:
    """Text to a tokenizer and token shards."""
    return _run("corpus", config, overrides, store)


@flow(**OPTIONS)
def pretrain(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Tokens to a checkpoint."""
    return _run("pretrain", config, overrides, store, inputs)


@flow(**OPTIONS)
def convert(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A checkpoint to a Hugging Face directory."""
    return _run("convert", config, overrides, store, inputs)


@flow(**OPTIONS)
def evaluate(
    config: Config = QUICKSTART,
    model: Model = "base",
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model's scores."""
    return _run(f"evaluate-{model}", config, overrides, store, inputs)


@flow(**OPTIONS)
def finetune(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model and instructions to a LoRA adapter."""
    return _run("finetune", config, overrides, store, inputs)


@flow(**OPTIONS)
def merge(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Base and adapter to one model."""
    return _run("merge", config, overrides, store, inputs)


@flow(**OPTIONS)
def gate(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Scores to approved or rejected."""
    return _run("gate", config, overrides, store, inputs)


@flow(**OPTIONS)
def export(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model to an ONNX bundle, and the proof that it agrees."""
    return _run("export", config, overrides, store, inputs)


@flow(**OPTIONS)
def release(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """An approved decision and a proven bundle to a release."""
    return _run("release", config, overrides, store, inputs)
