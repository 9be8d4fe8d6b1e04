"""A bundle and the model it was made from -> the proof that they agree, or no artifact at all.

In every engine, and with every adapter of the bundle, against MindSpore.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from artifacts.adapter import CONFIG, TENSORS, read_adapter
from artifacts.digest import sha256_file
from artifacts.errors import BadInput, StageFailed
from artifacts.hf_model import HFModel, read_model
from artifacts.manifest import Manifest, read_manifest
from artifacts.onnx_bundle import OnnxModel, graph_file
from artifacts.tokenizer_files import write_object
from stages.export.adapters import targets_of
from stages.export.agreement import Agreement, EngineResult, run_cases
from stages.export.cases import Case, sweep
from stages.export.checks import greedy_check, pieces_check, reference_text
from stages.export.engines import PACKAGES, SLOW, Lane, WithAdapter, lane, missing, version
from stages.export.kinds import EngineName
from stages.export.proof_config import ProofConfig
from stages.export.references import Reference
from stages.export.report import picture, table
from stages.export.structure import structure_problems
from stages.spec import Job

LONGEST = 512
SHOWN = 8
"""Problems named in the error; the rest is counted."""


@dataclass(frozen=True)
class Terms:
    """What is asked of one bundle."""

    engines: tuple[EngineName, ...]
    longest: int
    max_error: float
    max_mean_kl: float | None
    seed: int


def run(job: Job) -> dict[str, Any]:
    """Prove, and write `agreement.json`, `agreement.md` and `agreement.png`."""
    config: ProofConfig = job.config
    bundle, source = job.inputs["bundle"], job.inputs["model"]
    made = read_manifest(bundle)
    _check_made_from(made, bundle, read_manifest(source))
    model, graph = read_model(source), OnnxModel(bundle)
    adapters = _adapter_sources(made)
    terms = _terms(config, graph, model)
    structure = structure_problems(
        onnx.load(str(graph_file(bundle)), load_external_data=False),
        model.architecture,
        targets_of(map(read_adapter, adapters.values())),
    )
    agreement = _prove(graph, source, adapters, terms, structure)
    write_object(job.work / "agreement.json", agreement.to_json())
    (job.work / "agreement.md").write_text(table(agreement), encoding="utf-8")
    picture(agreement, job.work / "agreement.png")
    require(agreement)
    return {
        "cases": len(agreement.cases),
        "longest": terms.longest,
        "precision": agreement.precision,
        "engines": [each.engine for each in agreement.engines],
        "max_abs": agreement.max_abs,
        "max_error": agreement.max_scaled,
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


def _check_made_from(made: Manifest, bundle: Path, model: Manifest) -> None:
    entry = made.inputs.get("model")
    if entry is None or entry.digest != model.digest:
        found = entry.digest[:16] if entry else "none"
        raise BadInput(
            f"{bundle}: was made from the model with digest {found}, "
            f"this one has {model.digest[:16]}"
        )


def _adapter_sources(made: Manifest) -> dict[str, Path]:
    """The adapters a bundle was made with, name: directory in PEFT's form.

    Raises BadInput if one of their files is not there, or not as it was.
    """
    known = {entry.path: entry.sha256 for entry in made.sources}
    found = {name: Path(path) for name, path in made.config.get("adapters", {}).items()}
    problems = [
        f"{path / file}: is not the file that the bundle's adapter {name} was made from; "
        "the proof compares with that"
        for name, path in found.items()
        for file in (CONFIG, TENSORS)
        if not (path / file).is_file() or sha256_file(path / file) != known.get(str(path / file))
    ]
    if problems:
        raise BadInput(*problems)
    return found


def _terms(config: ProofConfig, graph: OnnxModel, model: HFModel) -> Terms:
    """Raises BadInput for what this bundle, its model or this machine does not allow."""
    operators, precision = graph.operators, graph.precision
    engines = config.engines_for(operators, precision)
    limit = model.architecture.max_positions
    problems = [
        f"prove.engines: names {name}, which is not installed; pip install {PACKAGES[name]}"
        for name in engines
        if missing(name)
    ]
    if unable := config.unable(operators, precision):
        problems.append(unable)
    if config.longest is not None and config.longest > limit:
        problems.append(f"prove.longest: is {config.longest}; the model's longest is {limit}")
    if problems:
        raise BadInput(*problems)
    return Terms(
        engines,
        min(limit, LONGEST) if config.longest is None else config.longest,
        config.max_error(precision),
        config.max_mean_kl(precision),
        config.seed,
    )


def _prove(
    graph: OnnxModel,
    source: Path,
    adapters: Mapping[str, Path],
    terms: Terms,
    structure: list[str],
) -> Agreement:
    """Run a bundle in every engine, and with every adapter, against MindSpore's logits."""
    from stages.engine import runtime  # brings MindSpore, which bad input need not wait for
    from stages.engine.inference import InferenceModel

    runtime.start("CPU")  # the proof compares in plain fp32, which every machine has
    cases = sweep(graph.vocab_size, terms.longest, terms.seed)
    print(
        f"prove: {len(cases)} cases up to {terms.longest} tokens in {', '.join(terms.engines)}",
        flush=True,
    )
    lanes = [lane(name, graph.operators, graph) for name in terms.engines]
    reference = InferenceModel.load(source).logits
    own, *others = _proofs(list(terms.engines), lanes, reference, cases, terms)
    for name, path in adapters.items():
        print(f"prove: the adapter {name}", flush=True)
        tuned = InferenceModel.load(source, path).logits
        switched = Lane(WithAdapter(graph, name), lanes[0].takes)
        some = [case for case in cases if len(case.ids_BT) == 2]
        others += _proofs([f"onnxruntime, adapter {name}"], [switched], tuned, some, terms)
    return Agreement(
        threshold=terms.max_error,
        max_mean_kl=terms.max_mean_kl,
        precision=graph.precision,
        longest=terms.longest,
        structure=structure,
        cases=own.cases,
        checks=own.checks,
        version=own.version,
        others=others,
    )


def _proofs(
    names: list[str], lanes: list[Lane], reference: Reference, cases: list[Case], terms: Terms
) -> list[EngineResult]:
    """One reference's cases and checks in several engines."""
    vocab_size, allowed = lanes[0].engine.vocab_size, terms.max_error
    text = reference_text(reference, vocab_size, terms.longest, terms.seed)
    pieces = min(terms.longest, SLOW)
    results = run_cases(lanes, reference, cases, allowed)
    return [
        EngineResult(
            name,
            version(name.partition(",")[0]),  # type: ignore[arg-type]
            found,
            [
                pieces_check(each.engine, vocab_size, pieces, terms.seed, allowed),
                greedy_check(each.engine, text, allowed),
            ],
        )
        for name, each, found in zip(names, lanes, results, strict=True)
    ]
