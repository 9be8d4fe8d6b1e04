"""From turns to text: what the model reads, and which of it it learns to say.

Whoever asks the tuned model later must write the very same text; `describe` is what goes into the
adapter's `template.json` for them.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from stages.finetune.examples import Turn

Template = Literal["question", "alpaca", "chatml", "plain"]

# The frames of the world's tests: lm-eval's mmlu_continuation in English, its like in Chinese.
QUESTION = {"en": "Question: {question}\nAnswer:", "zh": "问题：{question}\n答案："}
TASK = "Task:\n{instruction}\n\n"
CONTEXT = "Input:\n{input}\n\n"
ANSWER = "Answer:\n"
CHAT_BEGIN, CHAT_END = "<|im_start|>", "<|im_end|>"
CHAT_JINJA = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_LATIN_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True)
class Segment:
    """A piece of an example's text."""

    text: str
    learned: bool
    """Whether loss is taken on it."""


def render(template: Template, turns: tuple[Turn, ...]) -> list[Segment]:
    """The text of one example, in pieces; the end-of-sequence token follows the last.

    `question`, `alpaca` and `plain` take one user's and one assistant's turn. An answer's outer
    whitespace is dropped under `question`, whose frame sets exactly one space before it.
    """
    if template == "chatml":
        return _chatml(turns)
    user, assistant = turns
    if template == "plain":
        return [Segment(user.content, False), Segment(assistant.content, True)]
    if template == "question":
        return [
            Segment(question_prompt(user), False),
            Segment(" " + assistant.content.strip(), True),
        ]
    context = CONTEXT.replace("{input}", user.context) if user.context.strip() else ""
    prompt = TASK.replace("{instruction}", user.content) + context + ANSWER
    return [Segment(prompt, False), Segment(assistant.content, True)]


def question_prompt(user: Turn) -> str:
    """The frame in the question's language: Chinese if it has more Han characters than words."""
    question = _joined(user)
    han, words = len(_HAN.findall(question)), len(_LATIN_WORD.findall(question))
    return QUESTION["zh" if han > words else "en"].replace("{question}", question)


def describe(template: Template, end: str) -> dict[str, Any]:
    """What a reader needs to ask the tuned model in the words it was tuned on."""
    texts: dict[str, Any] = {
        "question": {"prompt": QUESTION, "answer": " {answer}"},
        "alpaca": {
            "prompt": TASK + ANSWER,
            "prompt_with_input": TASK + CONTEXT + ANSWER,
            "answer": "{output}",
        },
        "plain": {"prompt": "{prompt}", "answer": "{completion}"},
        "chatml": {"chat_template": CHAT_JINJA, "end_of_turn": CHAT_END},
    }
    return {"format": 1, "template": template, **texts[template], "end": end}


def reserved(template: Template) -> tuple[str, ...]:
    """Texts that mark the template's own boundaries and must not occur inside a turn."""
    return (CHAT_BEGIN, CHAT_END) if template == "chatml" else ()


def _chatml(turns: tuple[Turn, ...]) -> list[Segment]:
    segments = []
    for index, turn in enumerate(turns):
        learned = turn.role == "assistant"
        last = index == len(turns) - 1
        segments.append(Segment(f"{CHAT_BEGIN}{turn.role}\n", False))
        segments.append(Segment(_joined(turn) + CHAT_END, learned))
        if not last:
            segments.append(Segment("\n", False))
    return segments


def _joined(turn: Turn) -> str:
    return f"{turn.content}\n{turn.context}" if turn.context.strip() else turn.content
