"""Hugging Face directory -> ONNX bundle. Whether it agrees with the model, `prove` says."""

from typing import Any

import onnx

from artifacts.adapter import Adapter, read_adapter
from artifacts.errors import BadInput
from artifacts.hf_model import HFModel, read_model, tokenizer_problems
from artifacts.manifest import Manifest, read_manifest
from artifacts.onnx_bundle import DATA, graph_file
from artifacts.tokenizer_files import read_tokenizer
from stages.export.bundle import provenance, write_bundle
from stages.export.config import ExportConfig
from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    """Build the bundle."""
    config: ExportConfig = job.config
    source = job.inputs["model"]
    model = read_model(source)
    tokenizer = read_tokenizer(source)
    problems = tokenizer_problems(model, tokenizer)
    if not model.eos_ids:
        problems.append(f"{source}: config.json names no eos_token_id; generation would never end")
    if problems:
        raise BadInput(*problems)
    for note in model.notes:
        print(f"export: {note}", flush=True)

    manifest = read_manifest(source)
    adapters = _adapters(config, model, manifest)
    kind = (config.operators, config.precision)
    metadata = provenance(manifest, model, config.licence, *kind)
    print(f"export: writing the graph ({', '.join(kind)})", flush=True)
    write_bundle(
        job.work, model, tokenizer, metadata, *kind, adapters, config.layout, config.int4_block
    )
    path = graph_file(job.work)
    onnx.checker.check_model(str(path))
    return {
        "operators": config.operators,
        "precision": config.precision,
        "graph_bytes": path.stat().st_size,
        "data_bytes": path.with_name(DATA).stat().st_size,
    }


def _adapters(config: ExportConfig, model: HFModel, base: Manifest) -> dict[str, Adapter]:
    adapters, problems = {}, []
    for name, path in config.adapters.items():
        try:
            adapters[name] = read_adapter(path)
            if not config.force_base and adapters[name].base is not None:
                adapters[name].check_base(base)
            adapters[name].check_fits(model.architecture)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    return adapters
