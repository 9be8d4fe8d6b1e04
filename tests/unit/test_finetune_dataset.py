"""What the model reads and what it learns, token by token; what is dropped; what a step holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from stages.corpus.world import FRAME
from stages.finetune.config import FinetuneConfig
from stages.finetune.dataset import (
    NO_LOSS,
    Batches,
    Encoded,
    Encoder,
    alone,
    build_dataset,
    packed,
)
from stages.finetune.examples import Example, Turn
from stages.finetune.prepare import _divided
from stages.finetune.templates import QUESTION, Template, describe, question_prompt, render
from tests.tiny_models import write_tokenizer


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return Encoder(Tokenizer.from_file(str(directory / "tokenizer.json")), eos_id=0)


def held_out_of(numbers: list[int], **changes: Any) -> list[list[int]]:
    """Which of the examples are learned from and held out; one example to a number."""
    values = {"data": "world", "template": "question", "steps": 1, "held_out": 0.25}
    config = FinetuneConfig.model_validate(values | changes)
    examples = [Encoded(np.array([n, 0], np.int32), np.array([n, 0], np.int32)) for n in numbers]
    return [[int(each.ids[0]) for each in side] for side in _divided(examples, config)]


def test_what_is_held_out_is_not_learned_in_another_copy() -> None:
    for seed in range(20):
        numbers = np.random.default_rng(seed).integers(0, 12, 40).tolist()
        learned, held_out = held_out_of(numbers, seed=seed)
        assert not set(learned) & set(held_out)
        assert sorted(learned + held_out) == sorted(numbers)
        assert 6 <= len(held_out) <= 10
    assert held_out_of([7, 7, 7]) == [[7, 7, 7], []]
    assert held_out_of([7, 8, 7, 7, 8], held_out=0.01) == [[7, 7, 7], [8, 8]]
    assert held_out_of([7, 8, 7, 7, 8], held_out=0.99) in ([[7] * 3, [8] * 2], [[8] * 2, [7] * 3])


def test_without_copies_what_is_held_out_is_the_first_of_one_permutation() -> None:
    for seed, count in ((0, 30), (1, 4), (7, 301)):
        first = np.random.default_rng([seed, 1]).permutation(count)[: round(count / 4)]
        learned, held_out = held_out_of(list(range(count)), seed=seed)
        assert held_out == sorted(first.tolist())
        assert learned == [n for n in range(count) if n not in held_out]


def alpaca(question: str, answer: str, context: str = "", where: str = "f:1") -> Example:
    return Example(where, (Turn("user", question, context), Turn("assistant", answer)))


def printed(encoder: Encoder, template: Template, example: Example) -> str:
    """One token after the other; learned ones in [brackets]."""
    encoded, _ = encoder.encode(render(template, example.turns))
    shown = []
    for token, label in zip(encoded.ids.tolist(), encoded.labels.tolist(), strict=True):
        text = encoder.tokenizer.id_to_token(token).replace("Ġ", "_").replace("Ċ", "~")
        assert label in (token, NO_LOSS)
        shown.append(f"[{text}]" if label == token else text)
    return "".join(shown)


CHAT = Example(
    "f:1",
    (
        Turn("system", "S"),
        Turn("user", "a"),
        Turn("assistant", "bc"),
        Turn("user", "d"),
        Turn("assistant", "e"),
    ),
)

GOLDEN = [
    ("question", alpaca("Is it?", "no"), "Question:_Is_it?~Answer:[_][n][o][<|endoftext|>]"),
    ("alpaca", alpaca("Say", "hi"), "Task:~Say~~Answer:~[h][i][<|endoftext|>]"),
    (
        "alpaca",
        alpaca("Say", "hi", context="x"),
        "Task:~Say~~Input:~x~~Answer:~[h][i][<|endoftext|>]",
    ),
    ("plain", alpaca("One, two,", " three."), "One,_two,[_][t][h][r][e][e][.][<|endoftext|>]"),
    (
        "chatml",
        CHAT,
        "<|im_start|>system~S<|im_end|>~<|im_start|>user~a<|im_end|>~"
        "<|im_start|>assistant~[b][c][<|im_end|>]~<|im_start|>user~d<|im_end|>~"
        "<|im_start|>assistant~[e][<|im_end|>][<|endoftext|>]",
    ),
    (
        "chatml",
        alpaca("Say", "hi", context="x"),
        "<|im_start|>user~Say~x<|im_end|>~<|im_start|>assistant~[h][i][<|im_end|>][<|endoftext|>]",
    ),
]


@pytest.mark.parametrize(("template", "example", "tokens"), GOLDEN)
def test_labels_token_by_token(
    encoder: Encoder, template: Template, example: Example, tokens: str
) -> None:
    assert printed(encoder, template, example) == tokens


def test_question_prompts_are_those_of_the_world_and_its_tests() -> None:
    assert {language: text.replace("{question}", "{q}") for language, text in QUESTION.items()} == (
        FRAME
    )


@pytest.mark.parametrize(
    ("question", "prompt"),
    [
        ("What is it?", "Question: What is it?\nAnswer:"),
        ("请问 Arda 的 主粮 是 什么？", "问题：请问 Arda 的 主粮 是 什么？\n答案："),
        ("Please translate 你好 for me", "Question: Please translate 你好 for me\nAnswer:"),
        ("{question}?", "Question: {question}?\nAnswer:"),
    ],
)
def test_the_frame_speaks_the_language_of_the_question(question: str, prompt: str) -> None:
    assert question_prompt(Turn("user", question)) == prompt


def test_braces_in_the_data_are_text(encoder: Encoder) -> None:
    (segment, _) = render("alpaca", alpaca("{input} {0}", "x", context="{instruction}").turns)
    assert segment.text == "Task:\n{input} {0}\n\nInput:\n{instruction}\n\nAnswer:\n"


def test_the_recorded_template_renders_what_was_learned() -> None:
    import jinja2

    recorded = describe("chatml", "<|endoftext|>")
    messages = [{"role": turn.role, "content": turn.content} for turn in CHAT.turns]
    template = jinja2.Template(recorded["chat_template"], keep_trailing_newline=True)
    asked = template.render(messages=messages[:-1], add_generation_prompt=True)
    segments = render("chatml", CHAT.turns)
    assert asked == "".join(segment.text for segment in segments[:-1])
    assert describe("question", "x")["prompt"] == QUESTION


def test_tokens_put_before_every_text_come_first_and_carry_no_loss(encoder: Encoder) -> None:
    with_bos = Encoder(encoder.tokenizer, eos_id=0, bos=(1,))
    plain, _ = encoder.encode(render("question", alpaca("a", "b").turns))
    ours, merged = with_bos.encode(render("question", alpaca("a", "b").turns))
    assert ours.ids.tolist() == [1, *plain.ids.tolist()]
    assert ours.labels.tolist() == [NO_LOSS, *plain.labels.tolist()]
    assert not merged


def test_a_token_across_prompt_and_answer_is_split_and_counted(tmp_path: Path) -> None:
    from tokenizers import models

    tokenizer = Tokenizer(
        models.BPE(vocab={"<e>": 0, "a": 1, "\n": 2, "b": 3, "\nb": 4}, merges=[("\n", "b")])
    )
    from stages.finetune.templates import Segment

    encoded, merged = Encoder(tokenizer, 0).encode([Segment("a\n", False), Segment("b", True)])
    assert merged
    assert encoded.ids.tolist() == [1, 2, 3, 0]
    assert encoded.labels.tolist() == [NO_LOSS, NO_LOSS, 3, 0]


def test_what_is_dropped_is_counted_with_its_reason(encoder: Encoder) -> None:
    good = alpaca("a", "b", where="f:1")
    examples = [
        good,
        alpaca("a", "b", where="f:2"),
        alpaca("a", "c", where="f:3"),
        alpaca("a", " \n", where="f:4"),
        alpaca("", "b", where="f:5"),
        alpaca("a", "b" * 100, where="f:6"),
        alpaca("a", "b<|endoftext|>", where="f:7"),
        Example("f:8", CHAT.turns[:2]),
    ]
    dataset = build_dataset(examples, "question", encoder, max_length=30)
    assert dataset.read == 8
    assert len(dataset.examples) == 3
    assert dataset.dropped == {
        "empty answer": ["f:4"],
        "empty question": ["f:5"],
        "longer than max_length": ["f:6"],
        "special token inside the text": ["f:7"],
        "does not end with the assistant": ["f:8"],
    }
    assert (dataset.duplicates, dataset.conflicts) == (["f:2"], ["f:3"])


def test_the_longest_allowed_example_is_kept_whole(encoder: Encoder) -> None:
    length = len(encoder.encode(render("question", alpaca("a", "b").turns))[0].ids)
    kept = build_dataset([alpaca("a", "b")], "question", encoder, max_length=length)
    assert len(kept.examples) == 1
    assert not build_dataset([alpaca("a", "b")], "question", encoder, length - 1).examples


def batches(encoder: Encoder, count: int, size: int, seed: int = 0) -> Batches:
    examples = [alpaca("q" * (1 + i % 5), "a", where=f"f:{i}") for i in range(count)]
    made = build_dataset(examples, "question", encoder, 64).examples
    return Batches([alone(each) for each in made], size, seed, pad_id=1)


def test_targets_are_the_next_tokens_and_padding_is_not_learned(encoder: Encoder) -> None:
    made = batches(encoder, 3, 2)
    inputs, targets = made.batch(0)
    assert inputs.shape == targets.shape == (2, made.width)
    assert made.width % 8 == 0
    for row, index in enumerate(made.indices(0)):
        wanted = made.rows[index]
        length = len(wanted.inputs)
        np.testing.assert_array_equal(
            wanted.inputs[1:], wanted.targets.clip(0)[:-1].clip(0) * 0 + wanted.inputs[1:]
        )
        np.testing.assert_array_equal(inputs[row, :length], wanted.inputs)
        np.testing.assert_array_equal(targets[row, :length], wanted.targets)
        assert (inputs[row, length:] == 1).all()
        assert (targets[row, length:] == NO_LOSS).all()
        assert targets[row, length - 1] == 0  # the end is learned


def test_every_epoch_holds_every_example_once_in_a_new_order(encoder: Encoder) -> None:
    made = batches(encoder, 10, 4)
    seen = [index for step in range(5) for index in made.indices(step)]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    assert made.indices(3) == batches(encoder, 10, 4).indices(3)
    assert made.indices(0) != batches(encoder, 10, 4, seed=1).indices(0)


def test_packed_rows_hold_every_example_once_and_never_more_than_fits(encoder: Encoder) -> None:
    examples = [
        alpaca("q" * (1 + 5 * i % 23), "a" * (1 + i % 4), where=f"f:{i}") for i in range(40)
    ]
    made = build_dataset(examples, "question", encoder, 64).examples
    rows = packed(made, 63, seed=4)
    assert len(rows) < 30
    assert all(len(row.inputs) <= 63 for row in rows)
    found = []
    for row in rows:
        assert (np.diff(row.documents) >= 0).all()
        for number in range(1, row.documents[-1] + 1):
            part = row.documents == number
            found.append((row.inputs[part].tolist(), row.targets[part].tolist()))
    wanted = [(row.inputs.tolist(), row.targets.tolist()) for row in map(alone, made)]
    assert sorted(found) == sorted(wanted)
    again = packed(made, 63, seed=4)
    assert all(np.array_equal(a.inputs, b.inputs) for a, b in zip(rows, again, strict=True))

    batches = Batches(rows, 3, 0, pad_id=1)
    documents = batches.documents(0)
    inputs, targets = batches.batch(0)
    assert documents is not None
    assert documents.shape == inputs.shape
    assert (targets[documents == 0] == NO_LOSS).all()
    assert Batches([alone(each) for each in made], 3, 0, pad_id=1).documents(0) is None


def test_a_batch_larger_than_the_data_repeats_it(encoder: Encoder) -> None:
    seen = batches(encoder, 3, 7).indices(0)
    assert len(seen) == 7
    assert sorted(seen[:3]) == sorted(seen[3:6]) == [0, 1, 2]
