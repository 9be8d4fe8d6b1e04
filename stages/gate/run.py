"""Judge a candidate: read the reports, refuse unlike ones, apply every rule, write it all down."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.decision import Decision, JudgedReport, RuleResult, write_decision
from artifacts.errors import BadInput
from artifacts.manifest import read_manifest
from stages.gate.alike import condition_differences, task_differences
from stages.gate.config import GainOnAny, GainOverBase, GateConfig, NoRegression, tasks_of
from stages.gate.rules import Scores, clusters_of, judge, read_scores
from stages.gate.table import decision_table
from stages.spec import Job


def run(job: Job) -> dict[str, Any]:
    """Decide, and write `decision.json`, `decision.md` and `decision.png`."""
    config: GateConfig = job.config
    scores = {role: read_scores(path) for role, path in job.inputs.items()}
    others = scores.get("base"), scores.get("baseline")
    return written(
        job,
        scores,
        _problems(config, scores),
        lambda: [judge(rule, scores["candidate"], *others) for rule in config.rules],
    )


def written(
    job: Job,
    scores: Mapping[str, Scores],
    problems: Sequence[str],
    judged_by: Callable[[], list[RuleResult]],
) -> dict[str, Any]:
    """Write the decision that the rules come to, and return its headline.

    Raises BadInput if there are problems that keep the rules from being applied.
    """
    if problems:
        raise BadInput(*problems)
    results = judged_by()
    judged = {role: _judged(path, scores[role]) for role, path in job.inputs.items()}
    decision = Decision(
        outcome="approved" if all(result.passed for result in results) else "rejected",
        candidate=judged["candidate"],
        base=judged.get("base"),
        baseline=judged.get("baseline"),
        rules=results,
    )
    from stages.gate.chart import draw_decision  # half a second, which bad input need not wait for

    write_decision(job.work, decision)
    table = decision_table(decision)
    (job.work / "decision.md").write_text(table, encoding="utf-8")
    draw_decision(decision, job.work / "decision.png")
    print(table, flush=True)
    return {
        "outcome": decision.outcome,
        "rules": len(results),
        "passed": sum(result.passed and result.judged for result in results),
        "failed": [f"{result.rule} {result.task}" for result in results if not result.passed],
        "not_judged": [f"{result.rule} {result.task}" for result in results if not result.judged],
    }


def _judged(directory: Path, scores: Scores) -> JudgedReport:
    manifest = read_manifest(directory)
    return JudgedReport(
        report_digest=manifest.digest,
        report_identity=manifest.identity,
        model=scores.report.model,
    )


def contradictions(scores: Mapping[str, Scores]) -> list[str]:
    """Reports whose two files do not say the same."""
    return [
        f"inputs.{role}: report.json and items.jsonl disagree on task {task}"
        for role, one in scores.items()
        for task, scored in one.report.tasks.items()
        for items in [one.items.get(task, [])]
        if (len(items), sum(item.correct for item in items)) != (scored.items, scored.correct)
    ]


def unusable(where: str, task: str, candidate: Scores) -> list[str]:
    """Why the rule at `where` cannot look at this task."""
    tasks = candidate.report.tasks
    if task not in tasks:
        return [
            f"{where}.task: {task!r} is not in the candidate's report, "
            f"which has {', '.join(sorted(tasks)) or 'no task'}"
        ]
    scored = tasks[task]
    if not scored.by_item:
        return [
            f"{where}.task: {task!r} is measured in {scored.metric}; rules look at tasks whose "
            "answers are right or wrong"
        ]
    if len(set(clusters_of(candidate.items.get(task, [])))) < 2:
        return [
            f"{where}.task: {task!r} has fewer than two independent items; "
            "a standard error needs two at least"
        ]
    return []


def _problems(config: GateConfig, scores: dict[str, Scores]) -> list[str]:
    """Everything that keeps the rules from being applied: one sentence each."""
    found = contradictions(scores)
    usable = set(scores["candidate"].report.tasks)
    for index, rule in enumerate(config.rules):
        where = f"gate.rules.{index}"
        for task in tasks_of(rule):
            found += unusable(where, task, scores["candidate"])
        if isinstance(rule, GainOverBase | GainOnAny) and "base" not in scores:
            found.append(f"{where}: {rule.rule} needs the input base, an eval-report of it")
    for role, kinds in (("base", (GainOverBase, GainOnAny)), ("baseline", (NoRegression,))):
        named = [
            task for rule in config.rules if isinstance(rule, kinds) for task in tasks_of(rule)
        ]
        tasks = list(dict.fromkeys(named))
        if role in scores and tasks:
            found += unlike(scores, role, [task for task in tasks if task in usable])
    return found


def unlike(
    scores: Mapping[str, Scores], role: str, tasks: Sequence[str], but: Collection[str] = ()
) -> list[str]:
    """Differences between the candidate's report and `role`'s, on the tasks that are compared.

    `but` names conditions that may differ.
    """
    ours, other = scores["candidate"], scores[role]
    differences = condition_differences(ours.report, other.report, role, but)
    for task in tasks:
        if task not in ours.report.tasks:
            differences.append(f"{task}: the {role}'s report has this task, the candidate's not")
            continue
        if task not in other.report.tasks:
            differences.append(f"{task}: the candidate's report has this task, the {role}'s not")
            continue
        differences += task_differences(
            task,
            ours.report,
            other.report,
            ours.items.get(task, []),
            other.items.get(task, []),
            role,
        )
    return [
        f"inputs.{role}: is not comparable with the candidate: {text}; score both alike"
        for text in differences
    ]
