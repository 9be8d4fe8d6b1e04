"""Text as it comes: the pieces are the whole text, and an answer does not know its neighbours."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.channels import promote
from artifacts.errors import BadInput
from artifacts.manifest import InputEntry, read_manifest, write_manifest
from serving.answer import Answer
from serving.batch import CHUNK, Batch, Prefill
from serving.bundle import Served, find_bundle
from serving.sampling import adapted, named
from serving.streaming import TextStream
from serving.terminal import _fitting, draw
from stages.evaluate import drawing
from stages.evaluate.backends import OnnxBackend
from tests.bundles import write_tiny_bundle
from tests.tiny_models import as_artifact, tiny, write_hf

PROMPTS = ["hello", "a", "The quick brown fox jumps over", "你好，世界", "xyz " * 8]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    directory = tmp_path_factory.mktemp("served")
    write_tiny_bundle(directory, tiny(max_positions=400))
    return Served(directory / "bundle", threads=1)


def utf8(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


def streamed(data: bytes, stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    stream, pieces = TextStream(utf8, stop), []
    for byte in data:
        pieces.append(stream.push(byte))
        if stream.stopped:
            return pieces, True
    pieces.append(stream.finish())
    return pieces, stream.stopped


@given(st.text(), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_pieces_are_the_text_up_to_the_first_stop(text: str, stop: list[str]) -> None:
    text = text.replace("\ufffd", "")
    pieces, stopped = streamed(text.encode(), stop)
    wanted, cut = drawing._cut(text, stop)
    if not cut or len({text.find(one) for one in stop if one in text}) == 1:
        assert "".join(pieces) == wanted
    assert text.startswith("".join(pieces))
    assert stopped == cut
    assert "\ufffd" not in "".join(pieces)


def test_no_character_comes_in_halves_and_no_stop_text_begins() -> None:
    assert streamed("a€b".encode())[0] == ["a", "", "", "€", "b", ""]
    assert streamed(b"one END two", ["END"])[0] == ["o", "n", "e", " ", "", "", ""]
    assert streamed(b"ENE.", ["END"])[0] == ["", "", "EN", "E.", ""]
    assert streamed("€".encode()[:2])[0][-1] == "\ufffd"  # the text ends in the middle of one


def test_a_decoder_that_drops_the_first_space() -> None:
    words = ["▁a", "▁b", "c", "▁d"]

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[id] for id in ids).replace("▁", " ").removeprefix(" ")

    stream = TextStream(decode)
    assert [stream.push(id) for id in range(4)] == ["a", " b", "c", " d"]


def test_sampled_text_is_the_one_that_was_scored(served: Served) -> None:
    """Token for token what the evaluate stage draws, whose code reads all again for each token."""
    sampling = adapted(named("open"), {"max_tokens": 30, "stop": ["q", "\n\n"]})
    backend = OnnxBackend(served.model.directory)
    for text in PROMPTS:
        prompt = served.encode(text)
        (wanted,) = drawing.draw(
            backend,
            [drawing.Wanted(prompt, sampling.stop)],
            sampling,
            served.model.eos_ids,
            served.longest,
            served.codec.decode,
        )
        assert "".join(draw(served, served.answer(prompt, sampling))) == wanted


def test_rows_that_come_and_go_read_what_they_read_alone(served: Served) -> None:
    greedy = adapted(named("greedy"), {"max_tokens": 20})
    texts = {
        text: "".join(draw(served, served.answer(served.encode(text), greedy))) for text in PROMPTS
    }
    batch, running = Batch(None), list[tuple[str, Answer, list[str]]]()
    waiting = [*PROMPTS, *PROMPTS[::-1]]
    while waiting or running:
        if waiting:  # one more in every round, so that all lengths meet
            text = waiting.pop()
            answer = served.answer(served.encode(text), greedy)
            prefill = Prefill(answer.prompt, None)
            logits_V = prefill.step(served.model)
            assert logits_V is not None
            batch.join(prefill)
            running.append((text, answer, [answer.take(logits_V)]))
        ids_B = np.array([answer.ids[-1] for _, answer, _ in running])
        rows = []
        logits_BV = batch.step(served.model, ids_B)
        for i, (text, answer, pieces) in enumerate(running):
            pieces.append(answer.take(logits_BV[i]))
            if answer.reason is None:
                rows.append(i)
            else:
                assert "".join(pieces) == texts[text]
        running = [running[i] for i in rows]
        batch.keep(rows)
    assert len(batch) == 0


def test_a_long_prompt_in_pieces_gives_the_logits_of_the_whole(served: Served) -> None:
    prompt = np.random.default_rng(0).integers(4, 260, 2 * CHUNK + 7).astype(np.int32)
    prefill, steps, logits_V = Prefill(prompt, None), 0, None
    while logits_V is None:
        logits_V, steps = prefill.step(served.model), steps + 1
    assert steps == 3
    assert np.abs(logits_V - served.model.logits(prompt[None])[0, -1]).max() < 1e-5


def test_answers_end_where_they_must(served: Served) -> None:
    prompt = served.encode("hello")
    for tokens, reason in ((3, "length"), (1, "length")):
        answer = served.answer(prompt, adapted(named("greedy"), {"max_tokens": tokens}))
        list(draw(served, answer))
        assert (len(answer.ids), answer.reason) == (tokens, reason)
    long = served.ids([5] * (served.longest - 2))
    answer = served.answer(long, named("greedy"))
    list(draw(served, answer))
    assert len(answer.ids) <= 2
    eos = Answer(prompt, named("greedy"), [7], 400, utf8)
    assert eos.take(np.eye(260)[7]) == ""
    assert (eos.ids, eos.reason) == ([], "stop")


def test_wrong_prompts_and_profiles(served: Served, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has 400 tokens"):
        served.answer(served.ids([5] * 400), named("greedy"))
    with pytest.raises(BadInput, match="token 260 does not exist; the vocabulary ends at 259"):
        served.ids([5, 260])
    with pytest.raises(BadInput, match="has no token"):
        served.encode("")
    with pytest.raises(BadInput, match="no chat template"):
        served.chat_prompt([{"role": "user", "content": "x"}])
    with pytest.raises(BadInput, match="no such profile"):
        named("greddy")
    with pytest.raises(BadInput, match="temperature: is -1"):
        adapted(named("default"), {"temperature": -1})
    model = as_artifact(tmp_path, "hf-model", lambda directory: write_hf(directory, tiny()))
    with pytest.raises(BadInput, match="is of kind hf-model; an onnx-bundle or a release would"):
        find_bundle(str(model), tmp_path)


def test_a_bundle_is_found_by_its_release_and_by_a_channel(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with pytest.raises(BadInput, match=r"latest: .*store holds no release; mindcycle run makes"):
        find_bundle("latest", store)
    with pytest.raises(BadInput, match="production: nothing stands there in"):
        find_bundle("production", store)
    made = []
    for i in "12":
        bundle = as_artifact(store, "onnx-bundle", partial(_fill, i), identity=i * 64)
        named = read_manifest(bundle)
        entry = InputEntry(kind=named.kind, identity=named.identity, digest=named.digest)
        release = as_artifact(
            store, "release", partial(_fill, i), identity=i * 64, inputs={"bundle": entry}
        )
        made.append((release, bundle))
    (old, old_bundle), (new, new_bundle) = made
    assert find_bundle("latest", store) == new_bundle
    assert find_bundle(str(old), store) == old_bundle
    assert find_bundle(read_manifest(old).digest[:8], store) == old_bundle
    promote(store, "production", old, "first")
    assert find_bundle("production", store) == old_bundle
    (old_bundle / "config.json").write_text('{"said": 7}')
    for reference in ("production", str(old_bundle), read_manifest(old_bundle).digest[:8]):
        with pytest.raises(BadInput, match=r"config.json: has changed, its sha256 is not"):
            find_bundle(reference, store)
    manifest = read_manifest(new)
    entry = manifest.inputs["bundle"].model_copy(update={"digest": "0" * 64})
    changed = manifest.model_copy(update={"inputs": {"bundle": entry}})
    write_manifest(new, changed)
    with pytest.raises(BadInput, match="is not the bundle that "):
        find_bundle("latest", store)


def _fill(text: str, directory: Path) -> None:
    (directory / "config.json").write_text(f'{{"said": {text}}}')


def test_a_temperature_says_whether_anything_is_drawn() -> None:
    assert adapted(named("default"), {"temperature": 0}).greedy
    assert not adapted(named("greedy"), {"temperature": 0.5}).greedy
    assert adapted(named("greedy"), {"temperature": None}) == named("greedy")


@pytest.mark.parametrize("most", [50, 100_000])
def test_a_chat_drops_its_oldest_turns_when_they_no_longer_fit(
    served: Served, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "chat_prompt", lambda all: "".join(each["content"] for each in all))

    def turns(count: int) -> list[dict[str, str]]:
        roles = ["user", "assistant"] * count
        return [{"role": role, "content": f"{i:09}"} for i, role in enumerate(roles[:-1])]

    sampling = adapted(named("greedy"), {"max_tokens": most})
    short, long = turns(2), turns(40)
    _fitting(served, short, sampling)
    assert short == turns(2)
    ids = _fitting(served, long, sampling)
    assert 1 < len(long) < 79
    assert long[-1] == turns(40)[-1]
    room = served.longest - min(most, served.longest // 4)
    assert room - 18 < len(ids) <= room
