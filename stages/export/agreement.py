"""The proof: in every engine the graph gives the reference's logits in every case, or it fails."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from artifacts.agreement import Difference, compare
from artifacts.onnx_bundle import Past
from artifacts.onnx_kinds import Precision
from stages.export.cases import Case
from stages.export.engines import Engine, Lane
from stages.export.likeness import Likeness, likeness
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
    max_rel: float | None = None
    kl: float | None = None
    max_kl: float | None = None
    top1: float | None = None


@dataclass(frozen=True)
class Check:
    """A statement about an engine that is no case of logits."""

    name: str
    said: str
    """What was found."""
    problem: str | None
    """Why it failed, in words; None if it passed."""


@dataclass(frozen=True)
class EngineResult:
    """One engine's part of the proof."""

    engine: str
    version: str
    cases: list[CaseResult]
    checks: list[Check] = field(default_factory=list)

    def largest(self, figure: str) -> float | None:
        """The largest of a figure over the cases that have it."""
        found = [getattr(each, figure) for each in self.cases]
        return max((value for value in found if value is not None), default=None)

    def mean(self, figure: str) -> float | None:
        """The mean of a figure over all rows of tokens."""
        known = [each for each in self.cases if getattr(each, figure) is not None and each.rows]
        rows = sum(each.rows for each in known)
        return sum(getattr(each, figure) * each.rows for each in known) / rows if rows else None

    def to_json(self) -> dict[str, Any]:
        """Its figures, and its cases and checks."""
        figures = {name: self.largest(name) for name in ("max_abs", "max_rel", "scaled", "max_kl")}
        return {
            "engine": self.engine,
            "version": self.version,
            **figures,
            "mean_kl": self.mean("kl"),
            "top1": self.mean("top1"),
            "checks": [asdict(each) for each in self.checks],
            "cases": [asdict(each) for each in self.cases],
        }


@dataclass(frozen=True)
class Agreement:
    """The proof's outcome. onnxruntime's part stands by itself, other engines' behind it."""

    threshold: float
    longest: int
    structure: list[str]
    """What is wrong with the graph by itself: interface and baked dimensions."""
    cases: list[CaseResult]
    checks: list[Check] = field(default_factory=list)
    others: list[EngineResult] = field(default_factory=list)
    """Other engines, and onnxruntime with an adapter switched on."""
    version: str = ""
    """onnxruntime's."""
    max_mean_kl: float | None = None
    """Largest mean divergence allowed, for precisions below float32."""
    precision: Precision = "fp32"
    """How the bundle's weights are stored."""

    @property
    def engines(self) -> list[EngineResult]:
        """All parts, onnxruntime first."""
        return [EngineResult("onnxruntime", self.version, self.cases, self.checks), *self.others]

    @property
    def problems(self) -> list[str]:
        """Everything that speaks against the graph; empty if it is proved."""
        problems = list(self.structure)
        for engine in self.engines:
            before = "" if engine.engine == "onnxruntime" else f"{engine.engine}: "
            problems += [f"{before}{c.case}: {c.problem}" for c in engine.cases if c.problem]
            problems += [f"{before}{c.name}: {c.problem}" for c in engine.checks if c.problem]
            mean = engine.mean("kl")
            if self.max_mean_kl is not None and mean is not None and mean > self.max_mean_kl:
                problems.append(
                    f"{before}mean divergence is {mean:.3g}, allowed is {self.max_mean_kl:.3g}"
                )
        return problems

    @property
    def max_abs(self) -> float | None:
        """Largest absolute error in onnxruntime over the cases that could be compared."""
        return self.engines[0].largest("max_abs")

    @property
    def max_scaled(self) -> float | None:
        """Largest error in onnxruntime, in units of the logits' size."""
        return self.engines[0].largest("scaled")

    def to_json(self) -> dict[str, Any]:
        """The content of `agreement.json`."""
        own, *others = (each.to_json() for each in self.engines)
        del own["scaled"]
        return {
            "format": 1,
            "passed": not self.problems,
            "precision": self.precision,
            "threshold": self.threshold,
            "max_mean_kl_allowed": self.max_mean_kl,
            "scaling": (
                "error = max abs difference / max(1, root mean square of the reference logits), "
                "over the rows of tokens that count"
            ),
            "engines": {"reference": "mindspore, float32", "tested": "onnxruntime, CPU"},
            "longest": self.longest,
            "max_scaled": self.max_scaled,
            "structure": self.structure,
            **own,
            "others": others,
        }


def run_cases(
    lanes: Sequence[Lane], reference: Reference, cases: list[Case], threshold: float
) -> list[list[CaseResult]]:
    """Run the cases in every engine that takes them; results in the order of the cases."""
    results: list[dict[int, CaseResult]] = [{} for _ in lanes]
    wanted = [case for case in cases if any(lane.takes(case) for lane in lanes)]
    for case, wanted_BTV in with_references(wanted, reference, lanes[0].engine.vocab_size):
        for lane, found in zip(lanes, results, strict=True):
            if lane.takes(case):
                found[id(case)] = run_case(lane.engine, wanted_BTV, case, threshold)
    return [[found[id(case)] for case in cases if id(case) in found] for found in results]


def run_case(engine: Engine, wanted_BTV: np.ndarray, case: Case, threshold: float) -> CaseResult:
    """Run one case. An engine that refuses or breaks is a failed case, not an error."""
    batch, total = case.ids_BT.shape
    rows_BS = case.mask_BT[:, case.past :]
    difference: Difference | None = None
    alike: Likeness | None = None
    try:
        logits_BSV, finite = forward_in_steps(engine, case)
        wanted_BSV = wanted_BTV[:, case.past :]
        difference = compare(wanted_BSV, logits_BSV, rows_BS)
        alike = likeness(wanted_BSV[rows_BS], logits_BSV[rows_BS])
        if not finite:
            problem = "a logit, key or value is not finite"
        elif not difference.within(threshold):
            problem = f"error {difference.scaled:.3g}, allowed is {threshold:.3g}"
        else:
            problem = None
    except Exception as error:  # engines' exceptions have no common base but this
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
        **(asdict(alike) if alike else {}),
    )


def forward_in_steps(engine: Engine, case: Case) -> tuple[np.ndarray, bool]:
    """Logits [B, S, V] of the new tokens, and whether everything that came out is finite."""
    batch, total = case.ids_BT.shape
    starts = range(case.past, total, case.steps) if case.steps else [case.past]
    edges = sorted({0, *starts, total})
    past: Past | None = None
    pieces, finite = [], True
    for begin, end in pairwise(edges):
        logits_BSV, past = engine.forward(
            case.ids_BT[:, begin:end],
            case.mask_BT[:, :end],
            case.positions_BT[:, begin:end],
            past,
        )
        _check_shapes(engine, logits_BSV, past, batch, end - begin, end)
        finite &= all(bool(np.isfinite(each).all()) for pair in past for each in pair)
        finite &= bool(np.isfinite(logits_BSV).all())
        if begin >= case.past:
            pieces.append(logits_BSV)
    return np.concatenate(pieces, axis=1), finite


def _check_shapes(
    engine: Engine, logits: np.ndarray, present: Past, batch: int, new: int, total: int
) -> None:
    if logits.shape != (batch, new, engine.vocab_size):
        raise ValueError(f"logits are {logits.shape}, not {(batch, new, engine.vocab_size)}")
    wanted = (batch, engine.kv_heads, total, engine.head_dim)
    for pair in present:
        for each in pair:
            if each.shape != wanted:
                raise ValueError(f"cached keys or values are {each.shape}, not {wanted}")
