"""The state that a killed run goes on from: one file, replaced whole, so it is whole or absent."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from artifacts.adapter import Pair
from artifacts.errors import BadInput
from artifacts.weights import SafetensorsFile, write_safetensors

STATE = "state.safetensors"


@dataclass(frozen=True)
class State:
    """Everything training needs to go on as if it had never stopped."""

    steps: int
    """Optimiser steps done; the order of examples follows from it."""
    updates: int
    """Optimiser updates applied."""
    tensors: Mapping[str, Pair]
    """Hugging Face module name -> (A, B)."""
    means: Mapping[str, np.ndarray]
    squares: Mapping[str, np.ndarray]
    """AdamW's running means and squares by parameter name."""
    history: np.ndarray
    """float64 [steps, 4]: loss, tokens with loss, gradient norm, learning rate of each step."""
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Hugging Face name -> tensor of the base that learns; none beside an adapter."""


def save_state(work: Path, state: State) -> None:
    """Replace the state in `work` by this one, whole or not at all."""
    arrays = {f"{m}.A": pair[0] for m, pair in state.tensors.items()}
    arrays |= {f"{m}.B": pair[1] for m, pair in state.tensors.items()}
    arrays |= {f"mean/{name}": array for name, array in state.means.items()}
    arrays |= {f"square/{name}": array for name, array in state.squares.items()}
    arrays |= {f"weight/{name}": array for name, array in state.weights.items()}
    arrays["history"] = state.history
    temporary = work / (STATE + ".tmp")
    write_safetensors(
        temporary,
        [(name, array.shape, array.dtype) for name, array in arrays.items()],
        arrays.values(),
        _metadata(state.steps, state.updates, arrays),
    )
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, work / STATE)


def load_state(work: Path) -> State | None:
    """The last state saved in `work`; None if there is none, or if a disk fault has broken it."""
    path = work / STATE
    if not path.is_file():
        return None
    try:
        file = SafetensorsFile(path)
        arrays = {name: np.array(file.read(name)) for name in file.names()}
        steps, updates = int(file.metadata["steps"]), int(file.metadata["updates"])
        if file.metadata != _metadata(steps, updates, arrays):
            raise ValueError
        history = arrays.pop("history")
    except (BadInput, KeyError, ValueError):
        print(f"finetune: {path} is broken, beginning anew", flush=True)
        return None
    modules = [name.removesuffix(".A") for name in arrays if name.endswith(".A")]
    return State(
        steps,
        updates,
        {module: (arrays[f"{module}.A"], arrays[f"{module}.B"]) for module in modules},
        _below("mean/", arrays),
        _below("square/", arrays),
        history,
        _below("weight/", arrays),
    )


def clear_state(work: Path) -> None:
    """Remove the state: the artifact holds the result only."""
    for name in (STATE, STATE + ".tmp"):
        (work / name).unlink(missing_ok=True)


def _metadata(steps: int, updates: int, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return {"steps": str(steps), "updates": str(updates), "sha256": digest.hexdigest()}


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
