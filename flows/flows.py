"""The flows that Prefect knows: the lifecycle, and one for each stage with what it needs.

A stage's flow runs the steps before it only where their artifacts are not there yet.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from prefect import Flow, flow
from prefect.states import State
from pydantic import Field

from flows.lifecycle import load_work
from flows.prefect_run import run_as_flow

Config = Annotated[str, Field(min_length=1)]
Overrides = tuple[Annotated[str, Field(pattern=r"^[^=]+=")], ...]
Store = str | None
Inputs = tuple[Annotated[str, Field(pattern=r"^[^=]+=.")], ...]
Model = Literal["base", "tuned", "bundle"]

# Prefect reads the parameters' descriptions for its form from the docstring, and from there only.
DESCRIPTIONS = {
    "config": "YAML file of the run, relative to MindCycle's clone.",
    "model": "Whose scores: the pretrained model's, the fine-tuned one's, or the ONNX bundle's.",
    "overrides": "Values that replace the file's, each as key.path=value: pretrain.steps=200.",
    "store": "Directory of the artifacts. By default the config's.",
    "inputs": "Artifacts to use instead of making them, each as role=directory or "
    "role=first digits of a digest.",
}
QUICKSTART = "configs/quickstart.yaml"


def described_flow(function: Callable[..., State[None]]) -> Flow[..., State[None]]:
    """A Prefect flow whose form explains every parameter."""
    names = inspect.signature(function).parameters
    lines = [f"    {name}: {DESCRIPTIONS[name]}" for name in names]
    function.__doc__ = "\n".join([f"{function.__doc__}\n", "Args:", *lines])
    # What is done is known by the manifests in the store, not by results that Prefect keeps.
    return flow(persist_result=False)(function)


def _run(
    target: str | None,
    config: str,
    overrides: tuple[str, ...],
    store: str | None,
    inputs: tuple[str, ...] = (),
) -> State[None]:
    where = Path(store) if store else None
    return run_as_flow(load_work(Path(config), overrides, where, target, inputs))


@described_flow
def lifecycle(
    config: Config = QUICKSTART, overrides: Overrides = (), store: Store = None
) -> State[None]:
    """Text to a released model: every stage in order, up to the release or the gate's rejection."""
    return _run(None, config, overrides, store)


@described_flow
def corpus(
    config: Config = QUICKSTART, overrides: Overrides = (), store: Store = None
) -> State[None]:
    """Text to a tokenizer and token shards."""
    return _run("corpus", config, overrides, store)


@described_flow
def pretrain(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Tokens to a checkpoint."""
    return _run("pretrain", config, overrides, store, inputs)


@described_flow
def convert(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A checkpoint to a Hugging Face directory."""
    return _run("convert", config, overrides, store, inputs)


@described_flow
def evaluate(
    config: Config = QUICKSTART,
    model: Model = "base",
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model's scores."""
    return _run(f"evaluate-{model}", config, overrides, store, inputs)


@described_flow
def finetune(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model and instructions to a LoRA adapter."""
    return _run("finetune", config, overrides, store, inputs)


@described_flow
def merge(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Base and adapter to one model."""
    return _run("merge", config, overrides, store, inputs)


@described_flow
def gate(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Scores to approved or rejected."""
    return _run("gate", config, overrides, store, inputs)


@described_flow
def export(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model to an ONNX bundle, and the proof that it agrees."""
    return _run("export", config, overrides, store, inputs)


@described_flow
def release(
    config: Config = QUICKSTART,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """An approved decision and a proven bundle to a release."""
    return _run("release", config, overrides, store, inputs)
