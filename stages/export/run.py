"""Hugging Face directory -> ONNX bundle, proved against MindSpore or not published at all."""

from typing import Any

import onnx

from artifacts.errors import BadInput, StageFailed
from artifacts.hf_model import HFModel, read_model, tokenizer_problems
from artifacts.manifest import read_manifest
from artifacts.onnx_bundle import DATA, GRAPH, OnnxModel
from artifacts.tokenizer_files import read_tokenizer, write_object
from stages.export.agreement import Agreement, run_cases
from stages.export.bundle import provenance, write_bundle
from stages.export.cases import sweep
from stages.export.config import ExportConfig
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
    if problems:
        raise BadInput(*problems)
    for note in model.notes:
        print(f"export: {note}", flush=True)

    metadata = provenance(read_manifest(source), model, config.licence)
    graph = write_bundle(job.work, model, tokenizer, metadata)
    onnx.checker.check_model(str(job.work / GRAPH))

    from stages.engine import runtime  # brings MindSpore, which bad input need not wait for
    from stages.engine.inference import InferenceModel

    runtime.start("CPU")  # the proof compares in plain fp32, which every machine has
    cases = sweep(model.architecture.vocab_size, longest, config.seed)
    print(f"export: proving the graph in {len(cases)} cases up to {longest} tokens", flush=True)
    reference = InferenceModel.load(source).logits
    agreement = Agreement(
        threshold=config.threshold,
        longest=longest,
        structure=structure_problems(graph, model.architecture),
        cases=run_cases(OnnxModel(job.work), reference, cases, config.threshold),
    )
    write_object(job.work / "agreement.json", agreement.to_json())
    (job.work / "agreement.md").write_text(table(agreement), encoding="utf-8")
    picture(agreement, job.work / "agreement.png")
    require(agreement)
    return {
        "cases": len(cases),
        "longest": longest,
        "max_abs": agreement.max_abs,
        "max_error": agreement.max_scaled,
        "graph_bytes": (job.work / GRAPH).stat().st_size,
        "data_bytes": (job.work / DATA).stat().st_size,
    }


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
