"""Score one model on the tasks of the config and write the report."""

import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TQDM_DISABLE", "1")  # ours is the progress that is shown

from artifacts.adapter import read_adapter
from artifacts.digest import sha256_json
from artifacts.eval_report import Conditions, EvalReport, ScoredModel, write_report
from artifacts.manifest import read_manifest
from artifacts.tokenizer_files import write_object
from stages.evaluate.checks import check_chat_template, check_model, read_questions
from stages.evaluate.config import EvaluateConfig
from stages.evaluate.kept import FILE, Kept
from stages.evaluate.text import TextCodec
from stages.spec import Job

if TYPE_CHECKING:  # its import takes seconds
    from stages.evaluate.models import Model


def run(job: Job) -> dict[str, Any]:
    """Ask every question, then write report.json, items.jsonl, lm-eval's files, page and chart."""
    config: EvaluateConfig = job.config
    if not config.allow_network:
        # Read when lm-eval's libraries load, hence before their import.
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    directory, adapter = job.inputs["model"], job.inputs.get("adapter")
    questions = read_questions(config, job.inputs.get("corpus"))
    codec = TextCodec(directory)
    if config.chat_template:
        check_chat_template(codec, directory)
    for note in check_model(directory, adapter):
        print(f"evaluate: {note}", flush=True)
    scored = scored_model(directory, adapter)

    # Here, since they take seconds, which bad input need not wait for.
    from stages.evaluate.asking import ask_all, build_tasks
    from stages.evaluate.lm_eval_files import write_lm_eval
    from stages.evaluate.models import load_model
    from stages.evaluate.page import write_page

    tasks = build_tasks(config, questions)
    kept = Kept(job.work / FILE)
    if len(kept):
        print(f"evaluate: going on after {len(kept)} finished batches", flush=True)
    model = load_model(config, scored.kind, directory, adapter, codec, kept)
    outcome = ask_all(model.lm, config, tasks, questions)

    conditions = conditions_of(config, model, codec)
    report = EvalReport(model=scored, conditions=conditions, tasks=outcome.tasks)
    write_report(job.work, report, outcome.items)
    about = {
        "config": {
            "model": model.name,
            "model_args": {"model": scored.digest, "adapter": scored.adapter},
            "batch_size": config.batch_size,
            "gen_kwargs": conditions.sampling,
        },
        "lm_eval_version": conditions.lm_eval,
        "max_length": model.max_length,
        "chat_template_sha": conditions.chat_template,
    }
    write_lm_eval(job.work / "lm_eval", outcome.results, outcome.samples, about)
    write_page(job.work, report)
    for title, answers in outcome.submissions.items():
        write_object(job.work / f"submission-{title}.json", answers)
    kept.remove()
    return {
        name: {
            "micro": task.micro,
            "micro_stderr": task.micro_stderr,
            "macro": task.macro,
            "items": task.items,
        }
        for name, task in report.tasks.items()
    }


def scored_model(directory: Path, adapter: Path | None) -> ScoredModel:
    """What the manifests say of the model. Raises BadInput for an adapter of another base."""
    manifest = read_manifest(directory)
    if adapter is not None:
        read_adapter(adapter).check_base(manifest)
    return ScoredModel(
        kind=manifest.kind,
        identity=manifest.identity,
        digest=manifest.digest,
        adapter=read_manifest(adapter).digest if adapter else None,
    )


def conditions_of(config: EvaluateConfig, model: "Model", codec: TextCodec) -> Conditions:
    """How the model was scored."""
    sampling = config.sampling.model_dump(mode="json")
    return Conditions(
        backend=model.backend,
        dtype=model.dtype,
        sampling=sampling,
        sampling_hash=config.sampling.digest(),
        tokenizer_hash=codec.hash,
        lm_eval=metadata.version("lm_eval"),
        chat_template=sha256_json(codec.chat_template) if config.chat_template else None,
        bos=codec.bos,
        max_length=model.max_length,
    )
