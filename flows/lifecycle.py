"""The one place that knows every stage: one run's config, and the order from text to a release."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.channels import CHANNELS, channel_name, standing
from artifacts.errors import BadInput
from artifacts.eval_report import PART
from artifacts.manifest import read_manifest
from artifacts.store import artifact_path, find_artifact
from flows.chain import Step, Work
from flows.config import load_config
from stages.convert.config import SPEC as CONVERT
from stages.convert.config import ConvertConfig
from stages.corpus.config import SPEC as CORPUS
from stages.corpus.config import CorpusConfig, WorldSource
from stages.corpus.world_tests import FEW_SHOT
from stages.evaluate.config import SPEC as EVALUATE
from stages.evaluate.config import EvaluateConfig
from stages.evaluate.other_tasks import LmEvalTask, TextTask
from stages.export.config import SPEC as EXPORT
from stages.export.config import ExportConfig
from stages.export.proof_config import SPEC as PROVE
from stages.export.proof_config import ProofConfig
from stages.finetune.config import FULL as FINETUNE_FULL
from stages.finetune.config import SPEC as FINETUNE
from stages.finetune.config import FinetuneConfig
from stages.gate.bundle_config import SPEC as GATE_BUNDLE
from stages.gate.bundle_config import BundleGateConfig
from stages.gate.config import SPEC as GATE
from stages.gate.config import GainOnAny, GainOverBase, GateConfig, tasks_of
from stages.merge.config import SPEC as MERGE
from stages.merge.config import MergeConfig
from stages.pretrain.config import SPEC as PRETRAIN
from stages.pretrain.config import PretrainConfig
from stages.release.config import SPEC as RELEASE
from stages.release.config import ReleaseConfig

OF_TEXT = "text, measured in bits per byte; rules look at tasks whose answers are right or wrong"

STEPS = (
    Step("corpus", CORPUS),
    Step("pretrain", PRETRAIN, {"corpus": "corpus"}),
    Step("convert", CONVERT, {"checkpoint": "pretrain"}),
    Step("evaluate-base", EVALUATE, {"model": "convert", "corpus": "corpus"}),
    Step("finetune", FINETUNE, {"model": "convert", "corpus": "corpus"}),
    Step("merge", MERGE, {"model": "convert", "adapter": "finetune"}),
    Step("evaluate-tuned", EVALUATE, {"model": "merge", "corpus": "corpus"}),
    Step("gate", GATE, {"candidate": "evaluate-tuned", "base": "evaluate-base"}),
    Step("export", EXPORT, {"model": "merge"}),
    Step("prove", PROVE, {"bundle": "export", "model": "merge"}),
    Step("evaluate-bundle", EVALUATE, {"model": "export", "corpus": "corpus"}),
    Step("gate-bundle", GATE_BUNDLE, {"candidate": "evaluate-bundle", "base": "evaluate-tuned"}),
    Step(
        "release",
        RELEASE,
        {
            "decision": "gate",
            "bundle_decision": "gate-bundle",
            "bundle": "export",
            "proof": "prove",
            "model": "merge",
            "candidate": "evaluate-tuned",
            "bundle_scores": "evaluate-bundle",
        },
    ),
)


class RunConfig(BaseModel):
    """One run: where its artifacts go, and the config of every stage."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, title="MindCycle run"
    )

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Letters, digits, '.', '_' and '-', at most 64. Names the run in logs and in Prefect; it takes
    no part in what is computed."""
    store: Path = Path("store")
    """Directory of the artifacts, relative to the current one. Runs may share it: work that is
    done already is found there. Default store."""
    remote: str | None = Field(default=None, min_length=1)
    """A store elsewhere that several machines share, as a URL that fsspec takes: s3://bucket/path,
    file:///mnt/store. What is done there already is fetched instead of made, what is made here is
    sent there. Keys come from the environment, as the protocol wants them. Default none."""
    baseline: str | None = None
    """Scores of the release that this one would replace, for the gate's no_regression rules: the
    directory of an eval-report, the first digits of its digest in the store, or a channel such as
    production: the scores of the release that stands there, none yet at first. Default none."""
    corpus: CorpusConfig
    """Text to tokens."""
    pretrain: PretrainConfig
    """Tokens to a model."""
    convert: ConvertConfig = ConvertConfig.model_validate({})
    """The model as a Hugging Face directory."""
    evaluate: EvaluateConfig
    """What the base, the tuned model and the exported bundle are asked."""
    finetune: FinetuneConfig
    """The base and instructions to an adapter."""
    merge: MergeConfig = MergeConfig.model_validate({})
    """Base and adapter as one model."""
    gate: GateConfig
    """What the tuned model must reach to be released."""
    export: ExportConfig = ExportConfig.model_validate({})
    """The tuned model as an ONNX bundle."""
    prove: ProofConfig = ProofConfig.model_validate({})
    """Where, how far and how exactly the bundle must agree with the tuned model."""
    gate_bundle: BundleGateConfig = BundleGateConfig.model_validate({})
    """What the bundle's own scores must reach beside the tuned model's."""
    release: ReleaseConfig = ReleaseConfig.model_validate({})
    """What is released."""

    @model_validator(mode="after")
    def _sections_fit(self) -> "RunConfig":
        """What a late stage would refuse after a long run is refused here."""
        problems = [*_without_world(self), *_too_long(self), *_without_template(self)]
        problems += [*_few_examples(self), *_unjudgeable(self), *_bundle_problems(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self


def _without_world(config: RunConfig) -> Iterator[str]:
    if any(source.kind == "world" for source in config.corpus.sources):
        return
    right = "add a source of kind world to corpus.sources, or name files"
    for i, task in enumerate(config.evaluate.tasks):
        if task.data == "world":
            yield f"evaluate.tasks.{i}.data: is 'world', but the corpus has none; {right}"
    if config.finetune.data == "world":
        yield f"finetune.data: is 'world', but the corpus has none; {right}"


def _too_long(config: RunConfig) -> Iterator[str]:
    model = config.pretrain.model
    if model == "initial":
        return  # what it can do is known when it is given
    positions = model.max_positions or config.pretrain.batch.sequence_length
    right = f"the model will have {positions} positions (pretrain.model.max_positions)"
    if config.finetune.max_length > positions:
        yield f"finetune.max_length: is {config.finetune.max_length}; {right}"
    if config.prove.longest is not None and config.prove.longest > positions:
        yield f"prove.longest: is {config.prove.longest}; {right}"


def _without_template(config: RunConfig) -> Iterator[str]:
    if not config.evaluate.chat_template:
        return
    gains = [rule for rule in config.gate.rules if isinstance(rule, GainOverBase | GainOnAny)]
    if config.corpus.tokenizer.file is None:
        yield (
            "evaluate.chat_template: is true; a tokenizer that is trained here has no chat "
            "template, set it to false"
        )
    elif config.finetune.template == "chatml" and gains:
        yield (
            "evaluate.chat_template: is true; finetune.template chatml gives the tuned model a "
            f"chat template of its own, so {gains[0].rule} would compare unlike prompts; set it to "
            "false"
        )


def _few_examples(config: RunConfig) -> Iterator[str]:
    for source in config.corpus.sources:
        if not isinstance(source, WorldSource):
            continue
        known = min(FEW_SHOT, source.countries // 2)
        for i, task in enumerate(config.evaluate.tasks):
            if task.data == "world" and task.num_fewshot > known:
                yield (
                    f"evaluate.tasks.{i}.num_fewshot: is {task.num_fewshot}; the world has {known} "
                    "examples a subject"
                )


def _text_tasks(config: RunConfig) -> set[str]:
    return {task.title for task in config.evaluate.tasks if isinstance(task, TextTask)}


def _is_asked(config: RunConfig, name: str) -> bool:
    """Whether a report may hold this task. Which parts a group of lm-eval's has, scoring shows."""
    group, part, _ = name.partition(PART)
    return any(
        task.title == name or (part and task.title == group and isinstance(task, LmEvalTask))
        for task in config.evaluate.tasks
    )


def _unjudgeable(config: RunConfig) -> Iterator[str]:
    asked = [task.title for task in config.evaluate.tasks]
    texts = _text_tasks(config)
    for i, rule in enumerate(config.gate.rules):
        for task in tasks_of(rule):
            if not _is_asked(config, task):
                yield f"gate.rules.{i}.task: is {task!r}; evaluate asks {', '.join(asked)}"
            elif task in texts:
                yield f"gate.rules.{i}.task: is {task!r}, {OF_TEXT}"
        if rule.rule == "no_regression" and config.baseline is None:
            yield f"gate.rules.{i}: no_regression needs scores to compare with; set baseline"


def _bundle_problems(config: RunConfig) -> Iterator[str]:
    asked = [task.title for task in config.evaluate.tasks]
    kinds, rules = [rule.rule for rule in config.gate_bundle.rules], "gate_bundle.rules"
    texts = _text_tasks(config)
    for i, rule in enumerate(config.gate_bundle.rules):
        if rule.rule != "same_choices" and not _is_asked(config, rule.task):
            yield f"{rules}.{i}.task: is {rule.task!r}; evaluate asks {', '.join(asked)}"
        elif rule.task in texts:
            yield f"{rules}.{i}.task: is {rule.task!r}, {OF_TEXT}"
    precision = config.export.precision
    if precision == "fp32" and "same_choices" not in kinds:
        yield (
            f"{rules}: has no same_choices; a bundle in fp32 must choose as the model on every "
            "item (export.precision)"
        )
    if precision != "fp32" and "rules" not in config.gate_bundle.model_fields_set:
        yield (
            f"{rules}: is not set; rounding weights (export.precision: {precision}) changes some "
            f"choices, so say what it may cost, such as {{rule: no_loss, task: {asked[0]}, "
            "margin: 0.02}"
        )
    unable = config.prove.unable(config.export.operators, precision)
    if unable:
        yield unable


def load_work(
    path: Path,
    overrides: Sequence[str] = (),
    store: Path | None = None,
    target: str | None = None,
    inputs: Sequence[str] = (),
) -> Work:
    """What a config file asks for, checked in full; cut down to what `target` needs if named.

    `inputs` fill roles of the target with artifacts, each as `role=directory` or `role=digest`.
    Raises BadInput.
    """
    config = load_config(RunConfig, path, overrides)
    store = store or config.store
    steps = [_with_baseline(step, config.baseline, store) for step in steps_of(config)]
    configs = {name: getattr(config, name) for name in {step.spec.name for step in STEPS}}
    configs[FINETUNE_FULL.name] = config.finetune
    work = Work(config.name, steps, configs, store, config.remote)
    given = parse_inputs(inputs, store, config.remote)
    if given and target is None:
        raise BadInput("input: is for a single stage; the lifecycle makes all of its own")
    return work if target is None else work.needed(target, given)


def steps_of(config: RunConfig) -> list[Step]:
    """The steps of a run: where fine-tuning makes a whole model, there is nothing to merge."""
    if config.finetune.method == "lora":
        return list(STEPS)
    found = []
    for step in STEPS:
        if step.spec is MERGE:
            continue
        inputs = {r: "finetune" if s == "merge" else s for r, s in step.inputs.items()}
        spec = FINETUNE_FULL if step.spec is FINETUNE else step.spec
        found.append(replace(step, spec=spec, inputs=inputs))
    return found


def parse_inputs(inputs: Sequence[str], store: Path, remote: str | None = None) -> dict[str, Path]:
    """`role=directory` or `role=digest` as role -> directory, fetched if only `remote` has it.

    Raises BadInput, and StageFailed if it cannot be fetched.
    """
    given: dict[str, Path] = {}
    for text in inputs:
        role, equals, reference = text.partition("=")
        if not (role and equals and reference):
            raise BadInput(f"input {text}: write role=directory or role=digest")
        if role in given:
            raise BadInput(f"input {role}: is given twice")
        given[role] = find_or_fetch(store, reference, remote)
    return given


def find_or_fetch(store: Path, reference: str, remote: str | None) -> Path:
    """An artifact of the store by its reference, or of a store elsewhere by its digest.

    Raises BadInput if neither has it, StageFailed if it cannot be fetched.
    """
    try:
        return find_artifact(store, reference)
    except BadInput:
        if remote is None or len(reference) < 4 or not reference.isalnum():
            raise
        from artifacts.remote import Remote

        path = Remote(remote).fetch_by_digest(reference, store)
        if path is None:
            raise
        return path


def _with_baseline(step: Step, baseline: str | None, store: Path) -> Step:
    if baseline is None or step.spec is not GATE:
        return step
    try:
        if baseline not in CHANNELS:
            return step.with_given({"baseline": find_artifact(store, baseline)})
        release = standing(store, channel_name(baseline))
        if release is None:
            return step
        scores = read_manifest(release).inputs.get("candidate")
        if scores is None:
            raise BadInput(f"{release}: names no scores; a release would be right")
        path = artifact_path(store, scores.kind, scores.identity)
        return step.with_given({"baseline": path})
    except BadInput as error:
        raise BadInput(f"baseline: {error}") from None
