"""Train a LoRA adapter on a frozen base: check the data, train, write peft's files."""

from typing import Any

from artifacts.adapter import Adapter, Base, read_adapter, write_adapter
from artifacts.errors import BadInput
from artifacts.manifest import read_manifest
from artifacts.tokenizer_files import write_object
from stages.finetune.config import FinetuneConfig
from stages.finetune.data_check import data_check, data_table, write_data_check
from stages.finetune.dataset import Batches, build_dataset
from stages.finetune.logs import draw_loss
from stages.finetune.lora import chosen_spec
from stages.finetune.resume import clear_state
from stages.finetune.source import read_base, read_data
from stages.finetune.templates import describe
from stages.spec import Job

LAST = 20
"""Steps whose mean is the final loss: a single batch says little."""


def run(job: Job) -> dict[str, Any]:
    """Write the adapter, its base's digest, the template, and the account of the data."""
    config: FinetuneConfig = job.config
    model, encoder = read_base(job.inputs["model"], config.max_length)
    for note in model.notes:
        print(f"finetune: {note}", flush=True)
    start = _start(job)
    spec = chosen_spec(config.lora, start)
    examples = read_data(config, job.inputs.get("corpus"))

    dataset = build_dataset(examples, config.template, encoder, config.max_length)
    check = data_check(dataset, config.max_length)
    print(data_table(check), flush=True)
    if not dataset.examples:
        reasons = ", ".join(f"{len(found)} {why}" for why, found in dataset.dropped.items())
        raise BadInput(f"finetune.data: none of {dataset.read} examples can be used: {reasons}")
    write_data_check(job.work, check)
    write_object(job.work / "template.json", describe(config.template, encoder.eos_text))

    from stages.finetune.training import train  # brings MindSpore; bad input need not wait for it

    batches = Batches(dataset.examples, config.batch.global_size, config.seed, encoder.eos_id)
    steps = config.step_count(len(dataset.examples))
    tensors, history = train(model, config, batches, steps, job.work, start)

    base = read_manifest(job.inputs["model"])
    adapter = Adapter(
        **vars(spec),
        tensors=tensors,
        base=Base(base.digest, base.identity),
    )
    write_adapter(job.work, adapter)
    draw_loss(job.work / "logs" / "loss.png", history[:, 0])
    clear_state(job.work)
    return {
        "examples": len(dataset.examples),
        "dropped": dataset.read - len(dataset.examples),
        "steps": steps,
        "first_loss": float(history[0, 0]),
        "final_loss": float(history[-LAST:, 0].mean()),
        "trainable_parameters": adapter.parameter_count(),
        "share_with_loss": check["share_with_loss"],
    }


def _start(job: Job) -> Adapter | None:
    """The adapter that is trained further, if one is given; it must belong to this base."""
    if "adapter" not in job.inputs:
        return None
    start = read_adapter(job.inputs["adapter"])
    start.check_base(read_manifest(job.inputs["model"]))
    return start
