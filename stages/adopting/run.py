"""PEFT's files -> adapter of the store, with the digest of the base that its user names.

peft itself says nothing of the base but a name, so the user's word stands for it; from here on the
digest travels with the adapter, and another base is refused.
"""

from dataclasses import replace
from typing import Any

from artifacts.adapter import Base, read_adapter, write_adapter
from artifacts.hf_model import read_model
from artifacts.manifest import read_manifest
from stages.adopting.config import AdoptConfig
from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    """Check that it fits the base, and write it down with the base's digest."""
    config: AdoptConfig = job.config
    adapter = read_adapter(config.directory)
    model, manifest = read_model(job.inputs["model"]), read_manifest(job.inputs["model"])
    for note in (*model.notes, *adapter.notes):
        print(f"adopt: {note}", flush=True)
    adapter.check_fits(model.architecture)
    forced = adapter.base is not None and adapter.base.digest != manifest.digest
    if forced and not config.force:
        adapter.check_base(manifest)
    write_adapter(job.work, replace(adapter, base=Base(manifest.digest, manifest.identity)))
    return {
        "modules": len(adapter.tensors),
        "parameters": adapter.parameter_count(),
        "base": "forced" if forced else ("known" if adapter.base else "named by the user"),
    }
