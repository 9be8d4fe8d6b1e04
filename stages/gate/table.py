"""`decision.md`: the decision for people."""

from artifacts.decision import NOT_JUDGED, Decision, JudgedReport, RuleResult
from artifacts.wording import counted

HEAD = (
    "| rule | task | passed | candidate | other | difference | standard error | bound | must reach "
    "| confidence | items | clusters | wins | losses | McNemar p |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def decision_table(decision: Decision) -> str:
    """The decision as Markdown: the outcome, the models, a row a rule, reasons and notes."""
    passed = [result for result in decision.rules if result.passed and result.judged]
    unjudged = [result for result in decision.rules if not result.judged]
    parts = [f"# {decision.outcome.capitalize()}\n\n"]
    parts.append(
        f"{len(passed)} of {counted(len(decision.rules), 'rule')} passed; "
        + (f"{len(unjudged)} {NOT_JUDGED}; " if unjudged else "")
        + "all must. Scores are micro accuracies, differences are over the same items.\n\n"
    )
    for role, judged in (
        ("candidate", decision.candidate),
        ("base", decision.base),
        ("baseline", decision.baseline),
    ):
        parts.append(_model_line(role, judged))
    parts.append("\n" + HEAD + "".join(_row(result) for result in decision.rules) + "\n")
    for result in decision.rules:
        verdict = ("passed" if result.passed else "failed") if result.judged else NOT_JUDGED
        parts.append(f"- **{result.rule}** on {result.task} {verdict}: {result.reason}.\n")
        parts += [f"  - {note}\n" for note in result.notes]
    return "".join(parts)


def _model_line(role: str, judged: JudgedReport | None) -> str:
    if judged is None:
        return f"- {role}: none\n"
    model = judged.model
    adapter = f" with adapter {model.adapter[:16]}" if model.adapter else ""
    return (
        f"- {role}: {model.kind} {model.identity[:16]}{adapter}, "
        f"scored in eval-report {judged.report_identity[:16]}\n"
    )


def _row(result: RuleResult) -> str:
    sign = "" if result.rule in ("floor", "same_choices") else "+"
    cells = [
        result.rule,
        result.task,
        ("yes" if result.passed else "**no**") if result.judged else NOT_JUDGED,
        _number(result.candidate),
        _number(result.other),
        _number(result.difference, "+"),
        _number(result.standard_error),
        _number(result.bound, sign),
        _number(result.threshold, sign),
        f"{result.confidence:g}",
        str(result.items),
        str(result.clusters),
        "" if result.wins is None else str(result.wins),
        "" if result.losses is None else str(result.losses),
        "" if result.mcnemar_p is None else f"{result.mcnemar_p:.2g}",
    ]
    return "| " + " | ".join(cells) + " |\n"


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.4f}"
