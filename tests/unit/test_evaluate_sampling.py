"""Sampling profiles, and the tokens drawn under them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from stages.evaluate.drawing import Wanted, draw, next_token
from stages.evaluate.sampling import Sampling, SamplingProfile, profile_names
from tests.evaluation import NumpyBackend

profile = TypeAdapter(SamplingProfile).validate_python
BASE: dict[str, Any] = {
    "do_sample": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": 3,
    "max_tokens": 12,
}


def test_the_named_profiles() -> None:
    assert {"default", "greedy", "open", "qwen2.5-instruct"} <= set(profile_names())
    for name in profile_names():
        assert profile(name).digest()
    published = profile("qwen2.5-instruct")
    assert (published.top_k, published.repetition_penalty) == (20, 1.05)
    assert profile("open-llm-leaderboard").greedy
    assert "\nclass" in profile("humaneval-pass1").stop
    default = profile("default")
    assert (default.temperature, default.top_p, default.do_sample) == (0.1, 0.95, True)
    assert profile("greedy").greedy


def test_the_hash_is_of_the_values_and_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("{max_tokens: 12, seed: 3, top_k: 0, top_p: 1, temperature: 1, do_sample: yes}")
    assert profile(str(path)).digest() == profile(BASE).digest()
    changes = [
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"top_k": 4},
        {"repetition_penalty": 1.1},
        {"seed": 4},
        {"max_tokens": 13},
        {"stop": ["x"]},
        {"do_sample": False},
    ]
    digests = {profile(BASE | change).digest() for change in changes}
    assert len(digests | {profile(BASE).digest()}) == len(changes) + 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("deafult", "deepseek-r1, default, greedy, .* or a path"),
        ("missing.yaml", "cannot be read: No such file"),
        (BASE | {"temperature": 0}, "set do_sample: false"),
        (BASE | {"temperature": -1}, "greater than or equal to 0"),
        (BASE | {"top_p": 0}, "greater than 0"),
        (BASE | {"temprature": 1}, "Extra inputs"),
        (BASE | {"stop": [""]}, "empty text"),
    ],
)
def test_wrong_profiles(value: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        profile(value)


def frequencies(logits: list[float], **changes: Any) -> np.ndarray:
    sampling, rng = Sampling(**(BASE | changes)), np.random.default_rng(0)
    drawn = [next_token(np.array(logits), sampling, rng) for _ in range(4000)]
    return np.bincount(drawn, minlength=len(logits)) / 4000


def test_draws_follow_the_distribution() -> None:
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(shares).tolist()
    assert frequencies(logits) == pytest.approx(shares, abs=0.03)
    squared = shares**2 / (shares**2).sum()
    assert frequencies(logits, temperature=0.5) == pytest.approx(squared, abs=0.03)
    assert frequencies(logits, top_k=2) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    # 0.5 is not 0.7 yet, 0.5 + 0.3 is: two tokens stay.
    assert frequencies(logits, top_p=0.7) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert frequencies(logits, top_p=0.4).tolist() == [1, 0, 0, 0]


def test_a_cold_draw_is_greedy_and_greedy_draws_nothing() -> None:
    logits = np.random.default_rng(1).standard_normal(50)
    rng = np.random.default_rng(0)
    assert next_token(logits, Sampling(**(BASE | {"temperature": 1e-4})), rng) == logits.argmax()
    before = rng.bit_generator.state
    assert next_token(logits, profile("greedy"), rng) == logits.argmax()
    assert rng.bit_generator.state == before


def texts(size: int, sampling: Sampling, repeats: int = 1) -> list[str]:
    backend = NumpyBackend(40)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(1, 40, rng.integers(1, 20)).astype(np.int32) for _ in range(9)]
    wanted = [Wanted(prompt, (" 7 ",), k) for prompt in prompts for k in range(repeats)]
    found = []
    for begin in range(0, len(wanted), size):
        part = wanted[begin : begin + size]
        found += draw(backend, part, sampling, {0}, 24, lambda ids: " ".join(map(str, ids)) + " ")
    return found


@pytest.mark.parametrize("value", [BASE, "greedy", "default"])
def test_the_same_seed_gives_the_same_text_in_any_batch(value: Any) -> None:
    sampling = profile(value)
    alone = texts(1, sampling)
    assert texts(4, sampling) == texts(16, sampling) == alone
    assert len(set(alone)) > 1


def test_another_seed_or_repeat_gives_another_text() -> None:
    sampling = Sampling(**BASE)
    assert texts(4, sampling) != texts(4, Sampling(**(BASE | {"seed": 4})))
    twice = texts(4, sampling, repeats=2)
    assert twice[0::2] == texts(4, sampling)
    assert twice[0::2] != twice[1::2]


def test_texts_end_at_stops_limits_and_the_end_token() -> None:
    found = texts(4, Sampling(**BASE))
    assert all(" 7 " not in text and " 0 " not in text for text in found)
    assert max(len(text.split()) for text in found) <= 12
    long = texts(4, Sampling(**(BASE | {"max_tokens": 1000})))
    assert max(len(text.split()) for text in long) <= 23  # prompt and text fill 24 tokens


@pytest.mark.parametrize("end", [0, 3])
def test_any_end_token_ends_a_text_and_is_no_part_of_it(end: int) -> None:
    class Ending(NumpyBackend):
        def next_logits(self, ids_BT: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
            return np.eye(4)[np.where(lengths_B < 4, 2, end)]  # 2, 2, ... and an end at length 4

    wanted = [Wanted(np.array([1] * length, np.int32), ()) for length in (1, 3, 4)]
    greedy = profile("greedy")
    found = draw(Ending(4), wanted, greedy, {0, 3}, 50, lambda ids: "".join(map(str, ids)))
    assert found == ["222", "2", ""]


@pytest.mark.parametrize(("stop", "text"), [("bc", "a"), ("de", "abc"), ("zz", "abcdefefef")])
def test_stop_texts_are_found_across_tokens_and_cut_off(stop: str, text: str) -> None:
    words = {1: "ab", 2: "cd", 3: "ef"}

    class Counting(NumpyBackend):
        def next_logits(self, ids_BT: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
            return np.eye(4)[np.minimum(lengths_B, 3)]

    wanted = Wanted(np.array([1], np.int32), (stop,))
    found = draw(
        Counting(4), [wanted], profile("greedy"), {0}, 6, lambda ids: "".join(words[i] for i in ids)
    )
    assert found == [text]


def test_what_was_said_becomes_less_likely() -> None:
    logits, rng = np.array([2.0, 1.9, -1.0, -1.5]), np.random.default_rng(0)
    plain = Sampling(**(BASE | {"do_sample": False}))
    penalized = Sampling(**(BASE | {"do_sample": False, "repetition_penalty": 1.2}))
    assert next_token(logits, plain, rng, [0]) == 0
    assert next_token(logits, penalized, rng, [0]) == 1
    assert next_token(logits, penalized, rng, [0, 1, 1]) == 0
    # Negative logits are multiplied: dividing would make a repetition likelier.
    assert next_token(logits[2:], penalized, rng, [0]) == 0
    strong = Sampling(**(BASE | {"do_sample": False, "repetition_penalty": 2.0}))
    assert next_token(logits[2:], strong, rng, [0]) == 1
    assert logits.tolist() == [2.0, 1.9, -1.0, -1.5]


def test_the_report_names_what_took_part() -> None:
    assert "temperature" not in profile("greedy").used()
    assert {"temperature", "top_p", "top_k", "seed"} <= set(profile("default").used())


@pytest.mark.filterwarnings("error")
def test_the_coldest_draw_is_greedy_without_a_warning() -> None:
    logits, rng = np.random.default_rng(1).standard_normal(50), np.random.default_rng(0)
    for temperature in (1e-320, 1e-300, 1e-30):
        sampling = Sampling(**(BASE | {"temperature": temperature}))
        assert next_token(logits, sampling, rng) == logits.argmax()
