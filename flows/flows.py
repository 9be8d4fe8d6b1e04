"""The flows that Prefect knows: the lifecycle, and one for each stage with what it needs.

A stage's flow runs the steps before it only where their artifacts are not there yet.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import Flow, flow
from prefect.states import State
from pydantic import Field

from flows.lifecycle import load_work
from flows.parameters import Changes, changes_of, named_configs
from flows.prefect_run import run_as_flow

Config = Annotated[str, Field(min_length=1)]
Overrides = tuple[Annotated[str, Field(pattern=r"^[^=]+=")], ...]
Store = str | None
Inputs = tuple[Annotated[str, Field(pattern=r"^[^=]+=.")], ...]
Model = Literal["base", "tuned", "bundle"]

# Prefect reads the parameters' descriptions for its form from the docstring, and from there only.
DESCRIPTIONS = {
    "config": "YAML file of the run, relative to MindCycle's clone: one of those that are there, "
    "or another.",
    "changes": "Values that replace the config's; empty leaves them as they are there.",
    "model": "Whose scores: the pretrained model's, the fine-tuned one's, or the ONNX bundle's.",
    "overrides": "Other values that replace the config's, each as key.path=value: corpus.seed=1.",
    "store": "Directory of the artifacts. By default the config's.",
    "inputs": "Artifacts to use instead of making them, each as role=directory or "
    "role=first digits of a digest.",
}
QUICKSTART = "configs/quickstart.yaml"
NONE = Changes()
CONFIGS: Any = Literal[tuple(named_configs(Path(__file__).resolve().parent.parent))]
"""The form lists this clone's configs; any other can be typed."""


def described_flow(
    *sections: str,
) -> Callable[[Callable[..., State[None]]], Flow[..., State[None]]]:
    """A Prefect flow whose form explains every parameter.

    `sections` are those of the config whose values the form offers to change; none means all.
    """

    def described(function: Callable[..., State[None]]) -> Flow[..., State[None]]:
        names = inspect.signature(function).parameters
        lines = [f"    {name}: {DESCRIPTIONS[name]}" for name in names]
        function.__doc__ = "\n".join([f"{function.__doc__}\n", "Args:", *lines])
        function.__annotations__["config"] = CONFIGS | Config
        changes = changes_of(*sections)
        function.__annotations__["changes"] = changes
        # Prefect checks defaults as well.
        function.__defaults__ = tuple(
            changes() if default is NONE else default for default in function.__defaults__ or ()
        )
        # What is done is known by the manifests in the store, not by results that Prefect keeps.
        return flow(persist_result=False)(function)

    return described


def _run(
    target: str | None,
    config: str,
    changes: Changes,
    overrides: tuple[str, ...],
    store: str | None,
    inputs: tuple[str, ...] = (),
) -> State[None]:
    where = Path(store) if store else None
    replaced = [*changes.overrides(), *overrides]
    return run_as_flow(load_work(Path(config), replaced, where, target, inputs))


@described_flow()
def lifecycle(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
) -> State[None]:
    """Text to a released model: every stage in order, up to the release or the gate's rejection."""
    return _run(None, config, changes, overrides, store)


@described_flow("corpus")
def corpus(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
) -> State[None]:
    """Text to a tokenizer and token shards."""
    return _run("corpus", config, changes, overrides, store)


@described_flow("pretrain")
def pretrain(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Tokens to a checkpoint."""
    return _run("pretrain", config, changes, overrides, store, inputs)


@described_flow("pretrain", "convert")
def convert(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A checkpoint to a Hugging Face directory."""
    return _run("convert", config, changes, overrides, store, inputs)


@described_flow("evaluate")
def evaluate(
    config: Config = QUICKSTART,
    model: Model = "base",
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model's scores."""
    return _run(f"evaluate-{model}", config, changes, overrides, store, inputs)


@described_flow("finetune")
def finetune(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model and instructions to a LoRA adapter."""
    return _run("finetune", config, changes, overrides, store, inputs)


@described_flow("finetune")
def merge(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Base and adapter to one model."""
    return _run("merge", config, changes, overrides, store, inputs)


@described_flow("gate", "baseline")
def gate(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """Scores to approved or rejected."""
    return _run("gate", config, changes, overrides, store, inputs)


@described_flow("export")
def export(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A model to an ONNX bundle."""
    return _run("export", config, changes, overrides, store, inputs)


@described_flow("export", "prove")
def prove(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A bundle and its model to the proof that they agree."""
    return _run("prove", config, changes, overrides, store, inputs)


@described_flow("export", "gate", "baseline")
def gate_bundle(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """A bundle's scores beside its model's to approved or rejected."""
    return _run("gate-bundle", config, changes, overrides, store, inputs)


@described_flow("export", "prove", "gate", "baseline")
def release(
    config: Config = QUICKSTART,
    changes: Changes = NONE,
    overrides: Overrides = (),
    store: Store = None,
    inputs: Inputs = (),
) -> State[None]:
    """An approved decision and a proven bundle to a release."""
    return _run("release", config, changes, overrides, store, inputs)
