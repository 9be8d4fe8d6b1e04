"""Judge a bundle by its scores beside those of the model it was made from."""

from typing import Any

from artifacts.decision import RuleResult
from stages.gate.alike import ENGINE
from stages.gate.bundle_config import BundleGateConfig, NoLoss, SameChoices
from stages.gate.config import Floor
from stages.gate.rules import floor, no_loss, read_scores, same_choices
from stages.gate.run import contradictions, unlike, unusable, written
from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    """Decide, and write `decision.json`, `decision.md` and `decision.png`."""
    config: BundleGateConfig = job.config
    scores = {role: read_scores(path) for role, path in job.inputs.items()}
    bundle, model = scores["candidate"], scores["base"]
    problems = contradictions(scores)
    for index, rule in enumerate(config.rules):
        if not isinstance(rule, SameChoices):
            problems += unusable(f"gate_bundle.rules.{index}", rule.task, bundle)
    tasks = sorted(bundle.report.tasks.keys() | model.report.tasks.keys())
    # An engine of its own and rounded weights are what a bundle is about.
    problems += unlike(scores, "base", tasks, but=ENGINE)
    if not any(item.choice >= 0 for items in bundle.items.values() for item in items):
        problems += [
            f"gate_bundle.rules.{index}: same_choices looks at questions with choices; the reports "
            "have none, no_loss or floor would do"
            for index, rule in enumerate(config.rules)
            if isinstance(rule, SameChoices)
        ]

    def judged(rule: SameChoices | NoLoss | Floor) -> RuleResult:
        if isinstance(rule, SameChoices):
            return same_choices(bundle, model)
        return floor(rule, bundle) if isinstance(rule, Floor) else no_loss(rule, bundle, model)

    return written(job, scores, problems, lambda: [judged(rule) for rule in config.rules])
