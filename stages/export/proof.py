"""A bundle's graph in every engine, and with every adapter, against MindSpore."""

from pathlib import Path

from artifacts.onnx_bundle import OnnxModel
from stages.export.agreement import Agreement, EngineResult, run_cases
from stages.export.cases import Case, sweep
from stages.export.checks import greedy_check, pieces_check, reference_text
from stages.export.config import ExportConfig
from stages.export.engines import SLOW, Lane, WithAdapter, lane, version
from stages.export.references import Reference


def prove(
    bundle: Path, source: Path, config: ExportConfig, longest: int, structure: list[str]
) -> Agreement:
    """Run a bundle in every engine, and with every adapter, against MindSpore's logits."""
    from stages.engine import runtime  # brings MindSpore, which bad input need not wait for
    from stages.engine.inference import InferenceModel

    runtime.start("CPU")  # the proof compares in plain fp32, which every machine has
    model = OnnxModel(bundle)
    cases = sweep(model.vocab_size, longest, config.seed)
    names = config.proved_in
    print(
        f"export: proving the graph in {len(cases)} cases up to {longest} tokens "
        f"in {', '.join(names)}",
        flush=True,
    )
    lanes = [lane(name, config.operators, model) for name in names]
    reference = InferenceModel.load(source).logits
    own, *others = _proofs(list(names), lanes, reference, cases, config, longest)
    for name, path in config.adapters.items():
        print(f"export: proving the adapter {name}", flush=True)
        tuned = InferenceModel.load(source, path).logits
        switched = Lane(WithAdapter(model, name), lanes[0].takes)
        some = [case for case in cases if len(case.ids_BT) == 2]
        others += _proofs(
            [f"onnxruntime, adapter {name}"], [switched], tuned, some, config, longest
        )
    return Agreement(
        threshold=config.max_error,
        max_mean_kl=config.max_mean_kl,
        longest=longest,
        structure=structure,
        cases=own.cases,
        checks=own.checks,
        version=own.version,
        others=others,
    )


def _proofs(
    names: list[str],
    lanes: list[Lane],
    reference: Reference,
    cases: list[Case],
    config: ExportConfig,
    longest: int,
) -> list[EngineResult]:
    """One reference's cases and checks in several engines."""
    vocab_size, allowed = lanes[0].engine.vocab_size, config.max_error
    text = reference_text(reference, vocab_size, longest, config.seed)
    pieces = min(longest, SLOW)
    results = run_cases(lanes, reference, cases, allowed)
    return [
        EngineResult(
            name,
            version(name.partition(",")[0]),  # type: ignore[arg-type]
            found,
            [
                pieces_check(each.engine, vocab_size, pieces, config.seed, allowed),
                greedy_check(each.engine, text, allowed),
            ],
        )
        for name, each, found in zip(names, lanes, results, strict=True)
    ]
