"""`mindcycle import`: a model or an adapter from elsewhere becomes an artifact of the store."""

from pathlib import Path
from typing import Any

from artifacts.adapter import CONFIG as ADAPTER_CONFIG
from artifacts.errors import BadInput
from artifacts.store import find_artifact
from flows.columns import columns
from flows.pages import figure
from flows.stage_process import run_stage
from stages.adopting.config import SPEC as ADOPT
from stages.importing.config import SPEC as IMPORT
from stages.spec import Request


def import_directory(directory: Path, store: Path, base: str | None, force: bool) -> None:
    """Import and say what came of it. Raises BadInput and StageFailed."""
    is_adapter = (directory / ADAPTER_CONFIG).is_file()
    if is_adapter and base is None:
        raise BadInput(
            f"{directory}: is an adapter; --base says which model of the store it belongs to"
        )
    if not is_adapter and (base is not None or force):
        raise BadInput(f"{directory}: is no adapter, it has no {ADAPTER_CONFIG}; leave out --base")
    config: dict[str, Any] = {"directory": str(directory)}
    inputs: dict[str, str] = {}
    spec = IMPORT
    if base is not None:
        spec, inputs = ADOPT, {"model": str(find_artifact(store, base))}
        config["force"] = force
    notes: list[str] = []
    outcome = run_stage(
        spec,
        Request(spec.name, config, inputs, str(store)),
        notes.append,
        store / "logs" / f"{spec.name}.log",
    )
    # Not as they come: if it refuses its input, that is the error's to say.
    print("".join(f"  {note}\n" for note in notes), end="", flush=True)
    manifest = outcome.manifest
    rows = [
        (manifest.kind, "done already" if outcome.skipped else f"{outcome.seconds:.1f} s"),
        ("directory", str(outcome.path)),
        ("digest", manifest.digest[:16]),
        *((key, figure(value)) for key, value in manifest.headline.items()),
    ]
    print(columns(rows))
