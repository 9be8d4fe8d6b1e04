"""Decision, model, bundle and their scores -> a release, if they belong together and agree."""

from typing import Any

from artifacts.architecture import read_architecture
from artifacts.errors import BadInput
from artifacts.eval_report import EvalReport
from artifacts.onnx_bundle import graph_file
from artifacts.tokenizer_files import write_object
from stages.release.checks import problems_with
from stages.release.page import page
from stages.release.parts import Parts, read_parts
from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    """Check, then write the record and the page."""
    parts = read_parts(job.inputs)
    problems = problems_with(parts)
    if problems:
        raise BadInput(*problems)
    release = record(parts)
    write_object(job.work / "release.json", release)
    # The release stands in the store beside them: <store>/<kind>/<identity>.
    model, bundle = (
        f"../../{parts.manifests[role].kind}/{parts.paths[role].name}"
        for role in ("model", "bundle")
    )
    graph = graph_file(parts.paths["bundle"]).relative_to(parts.paths["bundle"])
    text = page(release, model, bundle, f"{bundle}/{graph}")
    (job.work / "RELEASE.md").write_text(text, encoding="utf-8")
    return {
        "parameters": release["parameters"],
        "precision": parts.agreement.precision,
        "max_error": release["agreement"]["max_scaled"],
        "licence": release["licence"],
        **{f"micro.{task}": score["micro"] for task, score in release["scores"].items()},
    }


def record(parts: Parts) -> dict[str, Any]:
    """The content of `release.json`."""
    architecture = read_architecture(parts.paths["model"])
    agreement = parts.agreement
    bundle = parts.manifests["bundle"]
    return {
        "format": 1,
        "artifacts": {
            role: {
                "kind": manifest.kind,
                "identity": manifest.identity,
                "digest": manifest.digest,
            }
            for role, manifest in sorted(parts.manifests.items())
        },
        "architecture": architecture.model_dump(mode="json"),
        "parameters": architecture.parameter_count(),
        "licence": bundle.config.get("licence"),
        "scores": _scores(parts.candidate),
        "bundle_scores": _scores(parts.bundle_scores),
        "gate": [rule.model_dump(mode="json") for rule in parts.decision.rules],
        "gate_bundle": [rule.model_dump(mode="json") for rule in parts.bundle_decision.rules],
        "agreement": {
            "precision": agreement.precision,
            "cases": len(agreement.cases),
            "longest": agreement.longest,
            "max_abs": agreement.max_abs,
            "max_scaled": agreement.max_scaled,
            "threshold": agreement.threshold,
        },
        "packages": dict(sorted(bundle.packages.items())),
    }


def _scores(report: EvalReport) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "items": task.items,
            "correct": task.correct,
            "micro": task.micro,
            "micro_stderr": task.micro_stderr,
            "macro": task.macro,
            "macro_stderr": task.macro_stderr,
            "chance": task.chance,
        }
        for name, task in sorted(report.tasks.items())
        if task.is_share
    }
