"""Our engines as lm-eval's model: right numbers, shared work, nothing that depends on batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, processors

from artifacts.errors import BadInput
from stages.evaluate.kept import FILE, Kept
from stages.evaluate.lm import EngineLM
from stages.evaluate.rows import batches, make_rows
from stages.evaluate.text import TextCodec
from tests.evaluation import GREEDY, TEXTS, NumpyBackend, letters, requests, write_tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


def model(
    directory: Path, batch_size: int = 4, max_positions: int = 64, **changes: Any
) -> tuple[EngineLM, NumpyBackend]:
    backend = NumpyBackend(315, max_positions, fail_after=changes.pop("fail_after", -1))
    codec = TextCodec(directory)
    return EngineLM(backend, codec, changes.pop("sampling", GREEDY), batch_size, **changes), backend


def by_hand(directory: Path, context: str, continuation: str) -> tuple[float, bool]:
    """Straight from the definition: one forward pass over one unpadded row."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    bare = context.rstrip()
    left = tokenizer.encode(bare).ids if bare else [0]
    whole = (
        tokenizer.encode(context + continuation).ids
        if bare
        else [0, *tokenizer.encode(continuation).ids]
    )
    logits = NumpyBackend(315).logits(np.array([whole[:-1]]))[0]
    total, greedy = 0.0, True
    for t in range(len(left), len(whole)):
        p = np.exp(logits[t - 1]) / np.exp(logits[t - 1]).sum()
        total += float(np.log(p[whole[t]]))
        greedy &= bool(p.argmax() == whole[t])
    return total, greedy


def test_loglikelihoods_by_hand(directory: Path) -> None:
    lm, _ = model(directory)
    found = lm.loglikelihood(requests(*TEXTS))
    for (context, continuation), (logprob, greedy) in zip(TEXTS, found, strict=True):
        expected = by_hand(directory, context, continuation)
        assert logprob == pytest.approx(expected[0], abs=1e-5), (context, continuation)
        assert greedy == expected[1]


def test_greedy_continuations_are_recognised(directory: Path) -> None:
    lm, backend = model(directory)
    context = [5, 9, 7]
    drawn: list[int] = []
    for _ in range(4):
        drawn.append(int(backend.logits(np.array([context + drawn]))[0, -1].argmax()))
    wrong = [*drawn[:-1], drawn[-1] + 1]
    wrong_early = [drawn[0] + 1, *drawn[1:]]
    asked = [(None, context, ids) for ids in (drawn, drawn[:1], wrong, wrong_early, wrong[-1:])]
    found = [greedy for _, greedy in lm._loglikelihood_tokens(asked)]
    assert found == [True, True, False, False, False]


def test_the_same_choices_at_any_batch_size(directory: Path) -> None:
    asked = letters(20) + requests(*TEXTS)
    found = [model(directory, size)[0].loglikelihood(asked) for size in (1, 3, 16)]
    values = np.array([[logprob for logprob, _ in one] for one in found])
    assert np.abs(values - values[0]).max() < 1e-5
    choices = values[:, : 4 * 20].reshape(3, 20, 4).argmax(2)
    assert (choices == choices[0]).all()
    assert len(set(choices[0].tolist())) > 1


def test_four_letters_cost_one_row(directory: Path) -> None:
    lm, backend = model(directory, 5)
    lm.loglikelihood(letters(20))
    assert [rows for rows, _ in backend.passes] == [5, 5, 5, 5]
    lengths = [length for _, length in backend.passes]
    assert lengths == sorted(lengths, reverse=True)


ids = st.lists(st.integers(0, 1), min_size=1, max_size=3).map(lambda x: np.array(x, np.int32))


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=12), st.integers(1, 4))
def test_rows_cover_every_request_once(pairs: list[Any], size: int) -> None:
    rows = make_rows([left for left, _ in pairs], [right for _, right in pairs])
    placed = [row for batch in batches(rows, size) for row in batch.rows]
    assert sorted(index for row in placed for index in row.requests) == list(range(len(pairs)))
    for row in placed:
        for index, last in zip(row.requests, row.last, strict=True):
            left, right = pairs[index]
            assert [*row.ids, last] == [*left, *right]
            assert row.context == len(left)
    assert all(len(batch.rows) <= size for batch in batches(rows, size))


def test_rolling_covers_every_token_once(directory: Path) -> None:
    text = "Question: Number of what? Answer: one two three four " * 3
    wide, _ = model(directory, max_positions=200)
    narrow, backend = model(directory, max_positions=7)
    asked = [Instance("loglikelihood_rolling", {}, (text,), 0, ("t", 0, 1))] * 2
    expected = by_hand(directory, "", text)[0]
    assert wide.loglikelihood_rolling(asked) == pytest.approx([expected, expected], abs=1e-4)
    first = narrow.loglikelihood_rolling(asked)
    assert first[0] == first[1] != pytest.approx(expected)
    assert max(length for _, length in backend.passes) == 7


def test_answers_that_tokenise_alike_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    from tokenizers import normalizers

    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    lm, backend = model(tmp_path)
    with pytest.raises(BadInput, match=r"task, question 7: the answers ' Two' and ' two' are"):
        lm.loglikelihood(requests(("q", " one"), ("q", " Two"), ("q", " two"), question=7))
    assert backend.passes == []
    with pytest.raises(BadInput, match="has no token of its own"):
        lm.loglikelihood(requests(("q", "")))


def test_options_with_the_same_text_tie(directory: Path) -> None:
    lm, _ = model(directory)
    first, second, other = lm.loglikelihood(
        requests(("q", " one"), ("q", " one"), ("q", " two"), question=0)
    )
    assert first == second != other


def test_what_does_not_fit_is_never_cut(directory: Path) -> None:
    lm, backend = model(directory, max_positions=12)
    context = " of" * 12
    assert lm.fits(context, [" A"])  # the answer's last token is predicted, not read
    assert not lm.fits(context, [" A B"])
    assert not lm.fits(" of" + context, [" A"])
    assert lm.fits("x" * 12, [" A"])  # a token a byte
    assert not lm.fits("x" * 13, [" A"])
    lm.loglikelihood(requests((context, " A")))
    with pytest.raises(BadInput, match=r"max_length: is 12; a prompt of 13 and an answer of 1"):
        lm.loglikelihood(requests((" of" + context, " A")))
    assert len(backend.passes) == 1
    shorter, _ = model(directory, max_positions=12, max_length=5)
    assert not shorter.fits(" of" * 6, [" A"])


@pytest.mark.parametrize(
    ("config", "post", "added"),
    [
        ({}, False, False),
        ({"add_bos_token": True}, False, True),
        ({}, True, True),
        ({"add_bos_token": False}, True, False),
    ],
)
def test_bos_as_declared_and_never_twice(
    tmp_path: Path, config: dict[str, Any], post: bool, added: bool
) -> None:
    write_tokenizer(tmp_path, **config)
    if post:
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        bos = "<|endoftext|>"
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A", special_tokens=[(bos, 0)]
        )
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = TextCodec(tmp_path)
    plain, begun = codec.encode([" A", "<|endoftext|> A"])
    assert plain.tolist() == [0] * added + codec.encode([" A"])[0].tolist()[added:]
    assert (plain[0] == 0) == added
    assert begun.tolist().count(0) == 1
    assert codec.bos == ("<|endoftext|>" if added else None)


def test_bos_stands_once_before_texts_without_context(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, add_bos_token=True)
    lm, _ = model(tmp_path)
    found = lm.loglikelihood(requests(("", " one two")))[0]
    assert found[0] == pytest.approx(by_hand(tmp_path, "", " one two")[0], abs=1e-5)
    rolling = lm.loglikelihood_rolling(
        [Instance("loglikelihood_rolling", {}, (" one two",), 0, ("t", 0, 1))]
    )
    assert rolling[0] == pytest.approx(found[0], abs=1e-5)


def test_a_killed_evaluation_goes_on_and_ends_the_same(directory: Path, tmp_path: Path) -> None:
    asked = letters(20) + requests(*TEXTS)
    whole, backend = model(directory, 3)
    expected = whole.loglikelihood(asked)
    passes = len(backend.passes)
    killed, _ = model(directory, 3, fail_after=4, kept=Kept(tmp_path / FILE))
    with pytest.raises(KeyboardInterrupt):
        killed.loglikelihood(asked)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"key": "half a li')
    kept = Kept(tmp_path / FILE)
    again, backend = model(directory, 3, kept=kept)
    assert again.loglikelihood(asked) == expected  # bit for bit
    assert len(backend.passes) == passes - 4
    third, backend = model(directory, 3, kept=Kept(tmp_path / FILE))
    assert third.loglikelihood(asked) == expected
    assert backend.passes == []
    kept.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["another digit", "no hash", "no end", "zeros"])
def test_a_kept_line_that_is_not_what_was_written_ends_what_is_kept(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / FILE
    kept = Kept(path)
    for key in ("a", "b", "c"):
        kept.put(key, [[-1.25, True]])
    first, second, third = path.read_bytes().splitlines(keepends=True)
    second = {
        "another digit": second.replace(b"-1.25", b"-1.35"),
        "no hash": b'{"key": "b", "result": [[-1.25, true]]}\n',
        "no end": second[:-1],
        "zeros": b"\0" * len(second) + b"\n",
    }[damage]
    path.write_bytes(first + second + third)
    again = Kept(path)
    assert (len(again), again.get("a"), again.get("b")) == (1, [[-1.25, True]], None)
    assert path.read_bytes() == first


def test_generated_texts_are_kept_too(directory: Path, tmp_path: Path) -> None:
    asked = [
        Instance("generate_until", {}, (f"Number {k}", {"until": ["\n"]}), 0, ("t", k, 1))
        for k in range(5)
    ]
    first = model(directory, 2, kept=Kept(tmp_path / FILE))[0].generate_until(asked)
    lm, backend = model(directory, 2, kept=Kept(tmp_path / FILE))
    assert lm.generate_until(asked) == first == model(directory, 5)[0].generate_until(asked)
    assert backend.passes == []
    assert all("\n" not in text for text in first)


def test_a_text_ends_at_each_of_the_models_own_end_tokens(directory: Path) -> None:
    asked = [Instance("generate_until", {}, ("Number", {}), 0, ("t", 0, 1))]
    lm, backend = model(directory)
    (whole,) = lm.generate_until(asked)
    prompt, drawn = lm.tok_encode("Number"), list[int]()
    for _ in range(2):
        drawn.append(int(backend.logits(np.array([prompt + drawn]))[0, -1].argmax()))
    assert drawn[-1] not in drawn[:-1]
    backend.eos_ids = [0, drawn[-1]]
    ending = EngineLM(backend, TextCodec(directory), GREEDY, 4)
    (short,) = ending.generate_until(asked)
    assert short == TextCodec(directory).decode(drawn[:-1])
    assert whole.startswith(short)
    assert len(short) < len(whole)


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{% set a = 1 %}{% generation %}{% set a = 2 %}said{% endgeneration %}{{ a }}", "said1"),
        ("{{ messages[0].content | tojson }}", '"<é>"'),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_a_chat_template_has_what_transformers_gives_it(
    tmp_path: Path, template: str, wanted: str
) -> None:
    write_tokenizer(tmp_path, chat_template=template)
    messages = [{"role": "user", "content": "<é>"}, {"role": "assistant", "content": "b"}]
    assert TextCodec(tmp_path).render_chat(messages, True) == wanted


def test_the_chat_template_is_rendered_without_reach(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}"
    write_tokenizer(tmp_path, chat_template=template)
    messages = [{"role": "user", "content": "hi"}]
    assert TextCodec(tmp_path).render_chat(messages, True) == "<user>hi<|endoftext|>"
    write_tokenizer(tmp_path, chat_template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(BadInput, match="template fails"):
        TextCodec(tmp_path).render_chat(messages, True)
