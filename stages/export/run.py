"""Hugging Face directory -> ONNX bundle, proved against MindSpore or not published at all."""

from typing import Any

import onnx

from artifacts.adapter import Adapter, read_adapter
from artifacts.errors import BadInput, StageFailed
from artifacts.hf_model import HFModel, read_model, tokenizer_problems
from artifacts.manifest import read_manifest
from artifacts.onnx_bundle import DATA, graph_file
from artifacts.tokenizer_files import read_tokenizer, write_object
from stages.export.adapters import targets_of
from stages.export.agreement import Agreement
from stages.export.bundle import provenance, write_bundle
from stages.export.config import ExportConfig
from stages.export.engines import PACKAGES, missing
from stages.export.proof import prove
from stages.export.report import picture, table
from stages.export.structure import structure_problems
from stages.spec import Job

LONGEST = 512
SHOWN = 8
"""Problems named in the error; the rest is counted."""


def run(job: Job) -> dict[str, Any]:
    """Build the bundle, prove it, report."""
    config: ExportConfig = job.config
    source = job.inputs["model"]
    model = read_model(source)
    tokenizer = read_tokenizer(source)
    problems = tokenizer_problems(model, tokenizer)
    if not model.eos_ids:
        problems.append(f"{source}: config.json names no eos_token_id; generation would never end")
    longest = _longest(config, model, problems)
    problems += [
        f"export.engines: names {name}, which is not installed; pip install {PACKAGES[name]}"
        for name in config.proved_in
        if missing(name)
    ]
    if problems:
        raise BadInput(*problems)
    for note in model.notes:
        print(f"export: {note}", flush=True)

    adapters = _adapters(config, model)
    kind = (config.operators, config.precision)
    metadata = provenance(read_manifest(source), model, config.licence, *kind)
    graph = write_bundle(job.work, model, tokenizer, metadata, *kind, adapters, config.layout)
    path = graph_file(job.work)
    onnx.checker.check_model(str(path))
    structure = structure_problems(graph, model.architecture, targets_of(adapters.values()))
    agreement = prove(job.work, source, config, longest, structure)
    write_object(job.work / "agreement.json", agreement.to_json())
    (job.work / "agreement.md").write_text(table(agreement), encoding="utf-8")
    picture(agreement, job.work / "agreement.png")
    require(agreement)
    return {
        "cases": len(agreement.cases),
        "longest": longest,
        "max_abs": agreement.max_abs,
        "max_error": agreement.max_scaled,
        "graph_bytes": path.stat().st_size,
        "data_bytes": path.with_name(DATA).stat().st_size,
    }


def _adapters(config: ExportConfig, model: HFModel) -> dict[str, Adapter]:
    adapters, problems = {}, []
    for name, path in config.adapters.items():
        try:
            adapters[name] = read_adapter(path)
            adapters[name].check_fits(model.architecture)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    return adapters


def require(agreement: Agreement) -> None:
    """Raise StageFailed, naming the worst of it, unless the graph is proved."""
    problems = agreement.problems
    if not problems:
        return
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    raise StageFailed(
        "\n".join(["the graph does not agree with MindSpore:", *problems[:SHOWN], *more])
    )


def _longest(config: ExportConfig, model: HFModel, problems: list[str]) -> int:
    limit = model.architecture.max_positions
    if config.longest is None:
        return min(limit, LONGEST)
    if config.longest > limit:
        problems.append(f"export.longest: is {config.longest}; the model's longest is {limit}")
    return config.longest
