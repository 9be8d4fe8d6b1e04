"""An evaluation for people: `report.md`, `report.html` (one file, pictures inside) and pictures."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path

from markdown_it import MarkdownIt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from artifacts.eval_report import EvalReport, Score, TaskScores

WORST = 5
"""Subjects listed as the worst of a task."""
SURE = 3
"""Standard errors that a score must lie off chance to be called so; with two, one guessed task in
twenty would be."""
TOP = 104
"""Percent at the end of an axis: a bar of 100 % and its error stay off the frame."""
CONSTANT = 0.9
"""Share of one letter among the answers from which the page warns."""


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
th, td { border: 1px solid #ccc; padding: .2em .6em; text-align: left }
th { background: #f3f3f3 } code { background: #f3f3f3 } img { max-width: 100% }
"""


def write_page(directory: Path, report: EvalReport) -> None:
    """Write the pages and their pictures."""
    pictures = {"scores.png": _draw(report)}
    for name, task in report.tasks.items():
        if len(task.subjects) > 1 and task.is_share:
            pictures[f"subjects-{name}.png"] = _draw_subjects(task)
    text = as_markdown(report)
    (directory / "report.md").write_text(text, encoding="utf-8")
    (directory / "report.html").write_text(as_html(text, pictures), encoding="utf-8")
    for name, data in pictures.items():
        (directory / name).write_bytes(data)


def as_html(markdown: str, pictures: Mapping[str, bytes]) -> str:
    """The page as one HTML file that needs no other; markup in names is shown, not followed."""
    # "html" off, so that a subject called <script> stays a name.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    for name, data in pictures.items():
        inside = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        body = body.replace(f'src="{name}"', f'src="{inside}"')
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Scores</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )


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
            f"| {quantity(task, task.micro, task.micro_stderr)} "
            f"| {quantity(task, task.macro, task.macro_stderr)} "
            f"| {100 * task.chance:.0f} | {against_chance(task)} |"
        )
    lines += [
        "",
        "Percent right, ± one standard error, except where a unit stands beside it. Micro counts "
        "every question alike, macro every subject alike. A score is called above or below chance "
        f"from {SURE} errors on.",
        "",
        "![scores](scores.png)",
    ]
    for name, task in report.tasks.items():
        lines += ["", f"## {name}", "", *_details(name, task)]
    sampling = ", ".join(f"{key} {_said(value)}" for key, value in conditions.sampling.items())
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


def quantity(task: TaskScores, value: float, stderr: float | None) -> str:
    """A score in percent, or in the unit of a metric that is no share, with its error."""
    if task.is_share:
        return percent(value, stderr)
    error = "" if stderr is None else f" ± {stderr:.4f}"
    return f"{value:.4f}{error} {task.metric.replace('_', ' ')}"


def against_chance(task: TaskScores) -> str:
    """Whether the score differs from guessing by more than SURE standard errors."""
    if task.chance == 0:
        return "not a guess"
    if task.micro_stderr is None:
        return "too few questions to say"
    if task.micro - SURE * task.micro_stderr > task.chance:
        return "above"
    if task.micro + SURE * task.micro_stderr < task.chance:
        return "below"
    return "at chance"


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _details(name: str, task: TaskScores) -> list[str]:
    total = max(1, task.items)
    lines = []
    if task.part_of is not None:
        lines.append(
            f"- the tasks of {task.part_of} have different metrics, and no average over all of "
            f"them; these are measured in {task.metric}"
        )
    if task.aggregate:
        lines.append(
            f"- {task.metric} is lm-eval's figure over all questions at once; no question has one "
            "of its own, so nothing is compared question by question"
        )
    if task.answer_counts:
        lines.append(f"- chosen: {_shares(task.answer_counts, total)}")
    if task.gold_counts:
        lines.append(f"- right: {_shares(task.gold_counts, total)}")
    if max(task.answer_counts.values(), default=0) >= CONSTANT * total:
        lines.append("- nearly always the same letter: the score is that letter's share of the key")
    if task.calibration is not None:
        lines.append(
            f"- calibration error {100 * task.calibration.ece:.1f} points, "
            f"Brier score {task.calibration.brier:.3f} (always a quarter each: 0.750)"
        )
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
    lines += _table("group", task.groups, task)
    if task.calibration is not None:
        lines += ["| how sure | questions | right |", "|---|---|---|"]
        lines += [
            f"| {100 * one.confidence:.1f} | {one.n} | {100 * one.acc:.1f} |"
            for one in task.calibration.bins
        ]
        lines.append("")
    if len(task.subjects) > 1 and task.is_share:
        lines += [f"![subjects](subjects-{name}.png)", ""]
    if len(task.subjects) > WORST:
        worst = sorted(task.subjects.items(), key=lambda item: (item[1].acc, item[0]))[:WORST]
        lines += _table("worst subjects", dict(worst), task)
    return lines + _table("subject", task.subjects, task)


def _shares(counts: Mapping[str, int], total: int) -> str:
    return ", ".join(f"{letter} {100 * n / total:.0f} %" for letter, n in counts.items())


def _table(title: str, scores: Mapping[str, Score], task: TaskScores) -> list[str]:
    """A row a subject or group; groups have a macro average as well."""
    if not scores:
        return []
    grouped = any(score.macro is not None for score in scores.values())
    head = [title, "questions", *(("micro", "macro") if grouped else (task.metric,))]
    if task.chance:
        head.append("above chance")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, score in scores.items():
        cells = [name.replace("|", "\\|"), str(score.n), quantity(task, score.acc, score.stderr)]
        if grouped:
            cells.append("" if score.macro is None else percent(score.macro, score.macro_stderr))
        if task.chance:
            cells.append(f"{100 * (score.acc - task.chance):+.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _draw(report: EvalReport) -> bytes:
    """Bars for micro and macro with their errors, a line at chance."""
    tasks = {name: task for name, task in report.tasks.items() if task.is_share}
    names = list(tasks)
    figure = Figure(figsize=(max(4.0, 1.2 + 1.6 * len(names)), 4.0), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for shift, label in ((-0.2, "micro"), (0.2, "macro")):
        values = [100 * getattr(task, label) for task in tasks.values()]
        errors = [100 * (getattr(task, f"{label}_stderr") or 0.0) for task in tasks.values()]
        places = [place + shift for place in range(len(names))]
        axes.bar(places, values, 0.38, yerr=errors, capsize=3, label=label)
    for place, task in enumerate(tasks.values()):
        chance = 100 * task.chance
        axes.plot([place - 0.45, place + 0.45], [chance, chance], "k--", linewidth=1)
    axes.plot([], [], "k--", linewidth=1, label="chance")
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_ylim(0, TOP)
    axes.set_ylabel("right, %")
    figure.legend(loc="outside upper right", ncols=3)
    return _png(figure)


def _draw_subjects(task: TaskScores) -> bytes:
    """A bar a subject, worst on top, with its error; a line at chance."""
    ordered = sorted(task.subjects.items(), key=lambda item: (-item[1].acc, item[0]))
    figure = Figure(figsize=(7.0, 1.0 + 0.18 * len(ordered)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.barh(
        range(len(ordered)),
        [100 * score.acc for _, score in ordered],
        xerr=[100 * (score.stderr or 0.0) for _, score in ordered],
        error_kw={"linewidth": 0.8},
    )
    axes.axvline(100 * task.chance, color="black", linestyle="--", linewidth=1)
    # Names are text, never mathematics between dollar signs.
    names = [name.replace("$", r"\$") for name, _ in ordered]
    axes.set_yticks(range(len(ordered)), names, fontsize=7)
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    axes.set_xlim(0, TOP)
    axes.set_xlabel("right, % (line: chance)")
    return _png(figure)


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    # Without the software's name, so that equal scores give equal bytes.
    FigureCanvasAgg(figure).print_png(data, metadata={"Software": None})
    return data.getvalue()
