"""Multiple-choice questions, and the CSV files in which the suites publish them.

MMLU: no header; question, four options, the answer's letter. C-Eval: a header with id, question,
A, B, C, D, answer and, in dev, explanation. CMMLU: a header with the row's number (nameless),
Question, A, B, C, D, Answer. Cells may hold commas, quotes and line breaks.
"""

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.errors import BadInput

LETTERS = ("A", "B", "C", "D")
CMMLU_HEADER = ["", "Question", "A", "B", "C", "D", "Answer"]
CEVAL_HEADER = ["id", "question", "A", "B", "C", "D", "answer"]
MOST_PROBLEMS = 20
"""Problems told about one file; a file of another kind would have one a line."""


@dataclass(frozen=True)
class Question:
    """One question with four options, as published."""

    id: str
    """Unique within its subject, and the same in every run."""
    text: str
    options: tuple[str, str, str, str]
    answer: int
    """Index of the right option."""
    explanation: str = ""
    cluster: str | None = None
    """Questions with the same cluster test the same fact."""


@dataclass(frozen=True)
class Subject:
    """A subject's questions."""

    name: str
    """As in file names: `college_physics`."""
    questions: list[Question]
    """Those that are scored."""
    examples: list[Question] = field(default_factory=list)
    """Those for few-shot examples, in the published order."""
    title: str | None = None
    """As in prompts: `college physics`."""
    category: str | None = None
    """The group of subjects it belongs to."""


def read_mmlu(path: Path) -> list[Question]:
    """Read one of MMLU's files; a question's id is its row, from 0.

    Raises BadInput naming file and line of every broken row.
    """
    problems: list[str] = []
    questions: list[Question] = []
    for line, row in _rows(path, problems):
        if len(row) != 6:
            problems.append(
                f"{path}:{line}: has {len(row)} columns; "
                "6 would be right: question, A, B, C, D, answer"
            )
        elif problem := _problem_with(*row):
            problems.append(f"{path}:{line}: {problem}")
        else:
            options = (row[1], row[2], row[3], row[4])
            answer = LETTERS.index(row[5].strip())
            questions.append(Question(str(len(questions)), row[0], options, answer))
    _raise(path, problems, questions)
    return questions


def read_ceval(path: Path, unlabelled: bool = False) -> list[Question]:
    """Read one of C-Eval's files; a question's id is the published one.

    `unlabelled` is for its test split, which has no answers: all questions get the first. Raises
    BadInput naming file and line of every broken row, and for answers that are missing.
    """
    problems: list[str] = []
    rows = _rows(path, problems)
    header = rows[0][1] if rows else []
    if unlabelled and header == CEVAL_HEADER[:6]:
        rows = [(line, [*row, "answer" if row is rows[0][1] else "A"]) for line, row in rows]
        header = rows[0][1]
    if header == CEVAL_HEADER[:6]:
        raise BadInput(
            f"{path}: has no answers (C-Eval keeps those of its test split to itself); "
            "the val split can be scored"
        )
    if header not in (CEVAL_HEADER, [*CEVAL_HEADER, "explanation"]):
        problems.append(
            f"{path}:1: header is {','.join(header)!r}; "
            f"{','.join(CEVAL_HEADER)} and perhaps explanation would be right"
        )
        _raise(path, problems, [])
    questions: list[Question] = []
    seen: set[str] = set()
    for line, row in rows[1:]:
        if len(row) != len(header):
            problems.append(f"{path}:{line}: has {len(row)} columns; the header has {len(header)}")
        elif problem := _problem_with(*row[1:7]):
            problems.append(f"{path}:{line}: {problem}")
        elif row[0] in seen:
            problems.append(f"{path}:{line}: id is {row[0]!r}, which an earlier row has")
        else:
            seen.add(row[0])
            options = (row[2], row[3], row[4], row[5])
            answer = LETTERS.index(row[6].strip())
            explanation = row[7] if len(row) > 7 else ""
            questions.append(Question(row[0], row[1], options, answer, explanation))
    _raise(path, problems, questions)
    return questions


def read_cmmlu(path: Path) -> list[Question]:
    """Read one of CMMLU's files; a question's id is the published number.

    Raises BadInput naming file and line of every broken row.
    """
    problems: list[str] = []
    rows = _rows(path, problems)
    if rows and rows[0][1] != CMMLU_HEADER:
        problems.append(
            f"{path}:1: header is {','.join(rows[0][1])!r}; {','.join(CMMLU_HEADER)} would be right"
        )
        _raise(path, problems, [])
    questions: list[Question] = []
    for line, row in rows[1:]:
        if len(row) != len(CMMLU_HEADER):
            problems.append(f"{path}:{line}: has {len(row)} columns; the header has 7")
        elif problem := _problem_with(*row[1:]):
            problems.append(f"{path}:{line}: {problem}")
        elif any(row[0] == question.id for question in questions):
            problems.append(f"{path}:{line}: number is {row[0]!r}, which an earlier row has")
        else:
            options = (row[2], row[3], row[4], row[5])
            questions.append(Question(row[0], row[1], options, LETTERS.index(row[6].strip())))
    _raise(path, problems, questions)
    return questions


def _problem_with(text: str, a: str, b: str, c: str, d: str, answer: str) -> str | None:
    if not text.strip():
        return "the question is empty"
    for letter, option in zip(LETTERS, (a, b, c, d), strict=True):
        if not option.strip():
            return f"option {letter} is empty"
    if answer.strip() not in LETTERS:
        return f"the answer is {answer!r}; A, B, C or D would be right"
    return None


def _raise(path: Path, problems: list[str], questions: list[Question]) -> None:
    if not problems and not questions:
        problems.append(f"{path}: holds no question")
    if len(problems) > MOST_PROBLEMS:
        more = len(problems) - MOST_PROBLEMS
        problems[MOST_PROBLEMS:] = [f"{path}: and {more} problems more"]
    if problems:
        raise BadInput(*problems)


def _rows(path: Path, problems: list[str]) -> list[tuple[int, list[str]]]:
    """The file's records, each with the line it begins on; blank lines are passed over.

    What cannot be read ends the list and is added to `problems`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path}:{line}: is not UTF-8 (byte {error.start})") from None
    # Without newline="" line breaks inside cells would be lost; strict refuses stray quotes.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return rows
        except csv.Error as error:
            hint = "; a quote is opened and not closed" if "unexpected end" in str(error) else ""
            problems.append(f"{path}:{line}: is broken CSV: {error}{hint}")
            return rows
        if row:
            rows.append((line, row))
