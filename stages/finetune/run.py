"""Train an adapter beside a frozen base, or the base itself: check the data, train, write."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from artifacts.adapter import TEMPLATE, Adapter, Base, write_adapter
from artifacts.errors import BadInput
from artifacts.fields import size_in_bytes
from artifacts.hf_model import copy_configs, write_weights
from artifacts.manifest import read_manifest
from artifacts.tokenizer_files import read_tokenizer, write_object
from stages.finetune.config import FinetuneConfig
from stages.finetune.data_check import data_check, data_table, write_data_check
from stages.finetune.dataset import none_left
from stages.finetune.logs import draw_loss
from stages.finetune.prepare import Prepared, prepare
from stages.finetune.resume import State, clear_state, load_state
from stages.finetune.templates import CHAT_JINJA, describe
from stages.spec import Job

LAST = 20
"""Steps whose mean is the final loss: a single batch says little."""
SHARD = "2GB"


def run(job: Job) -> dict[str, Any]:
    """Write the adapter, its base's digest, the template, and the account of the data."""
    config: FinetuneConfig = job.config
    if config.method != "lora":
        raise BadInput(f"finetune.method: is '{config.method}'; stage finetune-full makes models")
    made, end, figures = _trained(job)
    base = read_manifest(job.inputs["model"])
    adapter = Adapter(**vars(made.spec), tensors=end.tensors, base=Base(base.digest, base.identity))
    write_adapter(job.work, adapter)
    return _finished(job, made, end, figures, adapter.parameter_count())


def run_full(job: Job) -> dict[str, Any]:
    """Write the trained model in its base's dtype, the template, and the account of the data."""
    config: FinetuneConfig = job.config
    if config.method == "lora":
        raise BadInput("finetune.method: is 'lora'; stage finetune makes adapters")
    made, end, figures = _trained(job)
    model = made.model
    write_weights(
        job.work,
        model.architecture,
        lambda name: end.weights.get(name, model.weights.raw(name)),
        model.dtype,
        size_in_bytes(SHARD),
        "the trained model",
    )
    copy_configs(model, job.work)
    chat = CHAT_JINJA if config.template == "chatml" else None
    read_tokenizer(model.directory).copy_to(job.work, chat)
    count = sum(tensor.size for tensor in end.weights.values())
    return _finished(job, made, end, figures, count)


def _trained(job: Job) -> tuple[Prepared, State, dict[str, Any]]:
    """Check the data, train, compare on what was held out."""
    config: FinetuneConfig = job.config
    made = prepare(config, job.inputs)
    for note in made.model.notes:
        print(f"finetune: {note}", flush=True)
    check = data_check(made.dataset, config.max_length)
    if made.held_out:
        check["held_out"] = len(made.held_out)
    if config.packing:
        check["rows"] = len(made.batches.rows)
    print(data_table(check), flush=True)
    if not made.dataset.examples:
        raise BadInput(none_left(made.dataset.dropped))
    write_data_check(job.work, check)
    eos_text = made.encoder.eos_text
    write_object(job.work / TEMPLATE, describe(config.template, eos_text))
    if config.parallel.data == 1:
        # Here, since it brings MindSpore, which bad input need not wait for.
        from stages.finetune.training import train

        end = train(made.model, config, made.batches, made.steps, job.work, made.start)
    else:
        end = _together(job, config)
    figures = {"share_with_loss": check["share_with_loss"]}
    if made.held_out:
        figures |= _compared(job, made, end)
    return made, end, figures


def _finished(
    job: Job, made: Prepared, end: State, figures: dict[str, Any], trained: int
) -> dict[str, Any]:
    draw_loss(job.work / "logs" / "loss.png", end.history[:, 0])
    clear_state(job.work)
    return {
        "examples": len(made.dataset.examples) - len(made.held_out),
        "dropped": made.dataset.read - len(made.dataset.examples),
        "steps": made.steps,
        "first_loss": float(end.history[0, 0]),
        "final_loss": float(end.history[-LAST:, 0].mean()),
        "trainable_parameters": trained,
        **figures,
    }


def _together(job: Job, config: FinetuneConfig) -> State:
    """Train in several processes; the first leaves its last state in the work directory."""
    from stages.engine import parallel

    saved = load_state(job.work)
    text = json.dumps(
        {
            "config": config.model_dump(mode="json"),
            "inputs": {role: str(path) for role, path in job.inputs.items()},
            "work": str(job.work),
            "resume_from": saved.steps if saved else 0,
        }
    )
    scratch: Path = job.work / ".ranks"
    shutil.rmtree(scratch, ignore_errors=True)
    parallel.launch(
        [sys.executable, "-m", "stages.finetune.worker", text],
        config.parallel.data,
        scratch,
        config.parallel.timeout_seconds,
    )
    shutil.rmtree(scratch)
    end = load_state(job.work)
    assert end is not None, "the first rank has written it"
    return end


def _compared(job: Job, made: Prepared, end: State) -> dict[str, Any]:
    # Here, since they bring MindSpore.
    from stages.engine import runtime
    from stages.engine.inference import InferenceModel
    from stages.engine.model import Lora
    from stages.finetune.held_out import look, write_comparison

    runtime.start(job.config.device)
    model = made.model
    before = look(InferenceModel(model.architecture, model.weights), made.held_out)
    pairs = {m: (made.spec.rank_of(m), made.spec.scaling_of(m)) for m in end.tensors}
    adapter = (Lora(pairs), end.tensors) if pairs else None
    tensors = {name: end.weights.get(name, model.weights[name]) for name in model.weights}
    after = look(InferenceModel(model.architecture, tensors, adapter), made.held_out)
    found = write_comparison(job.work, before, after)
    print(
        f"finetune: held out {found['examples']}: loss {found['base']['loss']:.4f} -> "
        f"{found['tuned']['loss']:.4f}, exact {found['base']['exact_match']:.3f} -> "
        f"{found['tuned']['exact_match']:.3f}",
        flush=True,
    )
    return {
        "held_out_loss_base": found["base"]["loss"],
        "held_out_loss": found["tuned"]["loss"],
        "exact_match_base": found["base"]["exact_match"],
        "exact_match": found["tuned"]["exact_match"],
    }
