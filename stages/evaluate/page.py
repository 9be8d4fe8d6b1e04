"""An evaluation for people: `report.md` and `scores.png`."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from artifacts.eval_report import EvalReport, Score, TaskScores

WORST = 5
"""Subjects listed as the worst of a task."""
SURE = 3
"""Standard errors that a score must lie off chance to be called so; with two, one guessed task in
twenty would be."""
CONSTANT = 0.9
"""Share of one letter among the answers from which the page warns."""


def write_page(directory: Path, report: EvalReport) -> None:
    """Write both files."""
    (directory / "report.md").write_text(as_markdown(report), encoding="utf-8")
    _draw(directory / "scores.png", report)


def as_markdown(report: EvalReport) -> str:
    """The report as a page: scores, then what each task needs to be read rightly."""
    model, conditions = report.model, report.conditions
    lines = [
        "# Scores",
        "",
        f"Model: {model.kind} `{model.identity[:16]}`"
        + (f" with adapter `{model.adapter[:16]}`" if model.adapter else ""),
        "",
        "| task | form | shots | questions | micro | macro | chance | against chance |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, task in report.tasks.items():
        lines.append(
            f"| {name} | {task.form} | {task.num_fewshot} | {task.items} "
            f"| {percent(task.micro, task.micro_stderr)} "
            f"| {percent(task.macro, task.macro_stderr)} "
            f"| {100 * task.chance:.0f} | {against_chance(task)} |"
        )
    lines += [
        "",
        "Percent right, ± one standard error. Micro counts every question alike, macro every "
        f"subject alike. A score is called above or below chance from {SURE} errors on.",
        "",
        "![scores](scores.png)",
    ]
    for name, task in report.tasks.items():
        lines += ["", f"## {name}", "", *_details(task)]
    sampling = ", ".join(f"{key} {value}" for key, value in conditions.sampling.items())
    lines += [
        "",
        "## Conditions",
        "",
        f"- {conditions.backend}, {conditions.dtype}, lm-eval {conditions.lm_eval}, "
        f"at most {conditions.max_length} tokens",
        f"- token before every prompt (BOS): {conditions.bos or 'none'}; chat template: "
        + (f"`{conditions.chat_template[:16]}`" if conditions.chat_template else "off"),
        f"- tokenizer `{conditions.tokenizer_hash[:16]}`",
        f"- sampling profile `{conditions.sampling_hash[:16]}`: {sampling}",
    ]
    for name, task in report.tasks.items():
        used = ", ".join(task.sampling_used) or "none (likelihoods are compared, nothing is drawn)"
        lines.append(f"- sampling parameters that took part in {name}: {used}")
    return "\n".join(lines) + "\n"


def percent(value: float, stderr: float | None) -> str:
    """An accuracy in percent with its error."""
    return f"{100 * value:.2f}" + (f" ± {100 * stderr:.2f}" if stderr is not None else "")


def against_chance(task: TaskScores) -> str:
    """Whether the score differs from guessing by more than SURE standard errors."""
    if task.micro_stderr is None:
        return "too few questions to say"
    if task.micro - SURE * task.micro_stderr > task.chance:
        return "above"
    if task.micro + SURE * task.micro_stderr < task.chance:
        return "below"
    return "at chance"


def _details(task: TaskScores) -> list[str]:
    total = max(1, task.items)
    letters = ", ".join(
        f"{letter} {100 * count / total:.0f} %" for letter, count in task.answer_counts.items()
    )
    lines = [f"- chosen: {letters}"]
    if max(task.answer_counts.values(), default=0) >= CONSTANT * total:
        lines.append("- nearly always the same letter: the score is that letter's share of the key")
    if task.clusters is not None:
        lines.append(f"- errors count {task.clusters} distinct facts, not {task.items} questions")
    if task.truncated_items:
        lines.append(
            f"- {task.truncated_examples} examples dropped from {task.truncated_items} prompts "
            "that were too long"
        )
    if task.left_out_items:
        lines.append(f"- {task.left_out_items} questions left out, too long for the model")
    lines += [f"- prompts `{task.prompt_hash[:16]}`, version {task.version}", ""]
    lines += _table("group", task.groups)
    worst = sorted(task.subjects.items(), key=lambda item: (item[1].acc, item[0]))[:WORST]
    title = "worst subjects" if len(task.subjects) > WORST else "subject"
    return lines + _table(title, dict(worst))


def _table(title: str, scores: dict[str, Score]) -> list[str]:
    if not scores:
        return []
    rows = [
        f"| {name} | {score.n} | {percent(score.acc, score.stderr)} |"
        for name, score in scores.items()
    ]
    return [f"| {title} | questions | right |", "|---|---|---|", *rows, ""]


def _draw(path: Path, report: EvalReport) -> None:
    """Bars for micro and macro with their errors, a line at chance."""
    names = list(report.tasks)
    figure = Figure(figsize=(max(4.0, 1.2 + 1.6 * len(names)), 4.0), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for shift, label in ((-0.2, "micro"), (0.2, "macro")):
        values = [100 * getattr(task, label) for task in report.tasks.values()]
        errors = [100 * (getattr(task, f"{label}_stderr") or 0.0) for task in report.tasks.values()]
        places = [place + shift for place in range(len(names))]
        axes.bar(places, values, 0.38, yerr=errors, capsize=3, label=label)
    for place, task in enumerate(report.tasks.values()):
        chance = 100 * task.chance
        axes.plot([place - 0.45, place + 0.45], [chance, chance], "k--", linewidth=1)
    axes.plot([], [], "k--", linewidth=1, label="chance")
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_ylim(0, 100)
    axes.set_ylabel("right, %")
    axes.legend()
    # Without the software's name, so that equal scores give equal bytes.
    FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})
