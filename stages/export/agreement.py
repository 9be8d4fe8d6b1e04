"""The proof: the graph in onnxruntime gives the reference's logits in every case, or it fails."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from artifacts.agreement import Difference, compare
from artifacts.onnx_bundle import OnnxModel, Past
from stages.export.cases import Case
from stages.export.references import Reference, with_references


@dataclass(frozen=True)
class CaseResult:
    """How one case went."""

    case: str
    kind: str
    batch: int
    past: int
    new: int
    rows: int
    """Token rows compared; masked ones have no meaning and are only required to be finite."""
    max_abs: float | None
    scale: float | None
    scaled: float | None
    problem: str | None
    """Why it failed, in words; None if it passed."""


@dataclass(frozen=True)
class Agreement:
    """The proof's outcome."""

    threshold: float
    longest: int
    structure: list[str]
    """What is wrong with the graph by itself: interface and baked dimensions."""
    cases: list[CaseResult]

    @property
    def problems(self) -> list[str]:
        """Everything that speaks against the graph; empty if it is proved."""
        failed = [f"{each.case}: {each.problem}" for each in self.cases if each.problem]
        return self.structure + failed

    @property
    def max_abs(self) -> float | None:
        """Largest absolute error over the cases that could be compared."""
        return max((each.max_abs for each in self.cases if each.max_abs is not None), default=None)

    @property
    def max_scaled(self) -> float | None:
        """Largest error in units of the logits' size."""
        return max((each.scaled for each in self.cases if each.scaled is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """The content of `agreement.json`."""
        return {
            "format": 1,
            "passed": not self.problems,
            "threshold": self.threshold,
            "scaling": (
                "error = max abs difference / max(1, root mean square of the reference logits), "
                "over the rows of tokens that count"
            ),
            "engines": {"reference": "mindspore, float32", "tested": "onnxruntime, CPU"},
            "longest": self.longest,
            "max_abs": self.max_abs,
            "max_scaled": self.max_scaled,
            "structure": self.structure,
            "cases": [asdict(each) for each in self.cases],
        }


def run_cases(
    model: OnnxModel, reference: Reference, cases: list[Case], threshold: float
) -> list[CaseResult]:
    """Run all cases, in the order given."""
    results = {}
    for case, wanted_BTV in with_references(cases, reference, model.vocab_size):
        results[id(case)] = run_case(model, wanted_BTV, case, threshold)
    return [results[id(case)] for case in cases]


def run_case(model: OnnxModel, wanted_BTV: np.ndarray, case: Case, threshold: float) -> CaseResult:
    """Run one case. An engine that refuses or breaks is a failed case, not an error."""
    batch, total = case.ids_BT.shape
    rows_BS = case.mask_BT[:, case.past :]
    difference: Difference | None = None
    try:
        logits_BSV, finite = _run(model, case)
        difference = compare(wanted_BTV[:, case.past :], logits_BSV, rows_BS)
        if not finite:
            problem = "a logit, key or value is not finite"
        elif not difference.within(threshold):
            problem = f"error {difference.scaled:.3g}, allowed is {threshold:.3g}"
        else:
            problem = None
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        problem = " ".join(str(error).split())[:300]
    known = difference is not None and np.isfinite(difference.max_abs)
    return CaseResult(
        case=case.name,
        kind=case.kind,
        batch=batch,
        past=case.past,
        new=total - case.past,
        rows=int(rows_BS.sum()),
        max_abs=difference.max_abs if difference and known else None,
        scale=difference.scale if difference and known else None,
        scaled=difference.scaled if difference and known else None,
        problem=problem,
    )


def _run(model: OnnxModel, case: Case) -> tuple[np.ndarray, bool]:
    """Logits [B, S, V] of the new tokens, and whether everything that came out is finite."""
    batch, total = case.ids_BT.shape
    starts = range(case.past, total) if case.steps else [case.past]
    edges = sorted({0, *starts, total})
    past: Past | None = None
    pieces, finite = [], True
    for begin, end in pairwise(edges):
        logits_BSV, past = model.forward(
            case.ids_BT[:, begin:end],
            case.mask_BT[:, :end],
            case.positions_BT[:, begin:end],
            past,
        )
        _check_shapes(model, logits_BSV, past, batch, end - begin, end)
        finite &= all(np.isfinite(each).all() for pair in past for each in pair)
        finite &= bool(np.isfinite(logits_BSV).all())
        if begin >= case.past:
            pieces.append(logits_BSV)
    return np.concatenate(pieces, axis=1), finite


def _check_shapes(
    model: OnnxModel, logits: np.ndarray, present: Past, batch: int, new: int, total: int
) -> None:
    if logits.shape != (batch, new, model.vocab_size):
        raise ValueError(f"logits are {logits.shape}, not {(batch, new, model.vocab_size)}")
    wanted = (batch, model.kv_heads, total, model.head_dim)
    for pair in present:
        for each in pair:
            if each.shape != wanted:
                raise ValueError(f"cached keys or values are {each.shape}, not {wanted}")
