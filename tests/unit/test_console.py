"""What a run prints: tables that fit a terminal, and progress with what matters first."""

from flows.console import said
from flows.lifecycle import STEPS
from flows.narrow import narrowed
from stages.progress import Progress

TABLE = (
    "| rule | task | other | bound |\n|---|---|---|---|\n"
    "| floor | one \\| two | | 0.8006 |\n| gain | all | | 0.7 |\n"
)


def test_a_table_loses_its_empty_columns():
    shown = narrowed(f"# Page\n\n{TABLE}\nbelow\n", 80)
    assert shown.splitlines()[2:5] == [
        "| rule | task | bound |",
        "| --- | --- | --- |",
        "| floor | one \\| two | 0.8006 |",
    ]
    assert shown.startswith("# Page\n\n|")
    assert shown.endswith("|\n\nbelow\n")


def test_a_table_that_is_too_wide_is_a_list_or_what_the_list_below_says():
    assert narrowed(TABLE, 20) == (
        "- floor: task one \\| two, bound 0.8006\n- gain: task all, bound 0.7\n"
    )
    assert narrowed(f"{TABLE}\n- **floor** passed\n", 20) == "\n- **floor** passed\n"
    assert narrowed("| figure | value |\n|---|---|\n", 80) == ""


def test_progress_says_first_what_a_short_line_must_keep_and_names_the_step_once():
    pretrain = next(step for step in STEPS if step.name == "pretrain")
    line = (
        "pretrain  1/40 steps  loss 5.7171  lr 1.33e-03  validation 5.7  tokens/s 4,000"
        "  3.1 steps/s  0:12 left"
    )
    assert said(pretrain, line, 6.8) == (
        "1/40 steps  0:12 left  loss 5.7171  tokens/s 4,000  lr 1.33e-03  validation 5.7"
        "  3.1 steps/s"
    )
    assert said(pretrain, "pretrain: goes on at step 3", 6.8) == "6.8 s  goes on at step 3"
    assert said(pretrain, "something else") == "something else"


def test_one_question_is_no_questions(capsys):
    Progress("evaluate", 1, "questions").update(0)
    assert capsys.readouterr().out == "evaluate  0/1 question\n"
