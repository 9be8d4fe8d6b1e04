"""What a plan says, against sums that anyone can check."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from flows.planning import print_plan
from stages.engine.mesh import Layout
from stages.pretrain.estimate import (
    Work,
    flops,
    memory,
    proposals,
    seconds,
    traffic,
)

GB = 10**9
LLAMA_7B = Architecture(
    vocab_size=32000,
    hidden_size=4096,
    layers=32,
    heads=32,
    kv_heads=32,
    head_dim=128,
    intermediate_size=11008,
    max_positions=4096,
    tied_head=False,
)


ONE = Layout()


def work(layout: Layout = ONE, micro: int = 1, **changes: Any) -> Work:
    values: dict[str, Any] = {"sequences": 64, "precision": "bf16", "shape": LLAMA_7B} | changes
    shape, sequences, precision = (values[k] for k in ("shape", "sequences", "precision"))
    return Work(shape, layout, 2048, sequences, micro, precision, values.get("recompute", False))


def test_seven_billion_in_half_precision_take_twelve_bytes_each_before_activations() -> None:
    parameters = LLAMA_7B.parameter_count()
    assert parameters == 6_738_415_616
    found = memory(work(micro=64))  # at once: nothing accumulates
    assert found.before_activations == 12 * parameters
    # The rule of thumb counts 7e9 of them.
    assert found.before_activations / parameters * 7e9 == pytest.approx(84 * GB)
    assert found.masters == 4 * parameters
    assert memory(work(precision="fp32", micro=64)).before_activations == 16 * parameters


def test_layouts_divide_what_they_say() -> None:
    whole = memory(work(micro=1))
    zero = memory(work(Layout(data=8, zero=1), 8))
    assert zero.optimizer == math.ceil(whole.optimizer / 8 / 8) * 8
    assert zero.weights == whole.weights
    tensor = memory(work(Layout(tensor=8)))
    # All but the norms is divided.
    assert tensor.weights == pytest.approx(whole.weights / 8, rel=1e-3)
    assert tensor.logits == whole.logits // 8
    stages = memory(work(Layout(pipeline=8)))
    assert whole.weights / 8 < stages.weights < whole.weights / 7


def test_recomputed_layers_keep_only_what_came_in() -> None:
    plain, again = memory(work()), memory(work(recompute=True))
    assert again.activations < plain.activations / 5
    assert again.weights == plain.weights


def test_flops_are_six_a_parameter_and_a_token_beside_attention() -> None:
    one = work()
    in_products = LLAMA_7B.parameter_count() - 32000 * 4096 - 65 * 4096  # no lookup, no norms
    attention = 12 * 32 * 4096 * 2048
    assert flops(one) == one.tokens * (6 * in_products + attention)


def test_bytes_that_travel() -> None:
    parameters = LLAMA_7B.parameter_count()
    assert traffic(work()) == type(traffic(work()))(0, 0, 0)
    assert traffic(work(Layout(data=8))).data == int(4 * parameters * 2 * 7 / 8)
    assert traffic(work(Layout(data=8, zero=1))).data == int(8 * parameters * 2 * 7 / 8)
    stream = 2048 * 4096 * 2
    assert traffic(work(Layout(tensor=2))).tensor == 64 * (4 * 32 + 2) * stream
    assert traffic(work(Layout(pipeline=4))).pipeline == 2 * 64 * stream


def test_a_bubble_lengthens_a_step() -> None:
    plain, staged = (
        seconds(work(layout), 1e12, shared=False) for layout in (ONE, Layout(pipeline=4))
    )
    again = flops(work(Layout(pipeline=4))) / flops(work())
    assert staged == pytest.approx(plain * again / 4 * (64 + 3) / 64)


def test_processes_that_share_cores_are_no_faster_than_one() -> None:
    alone = seconds(work(), 1e12, shared=True)
    assert alone == seconds(work(), 1e12, shared=False)
    for layout in (Layout(data=4), Layout(tensor=4), Layout(pipeline=4)):
        assert seconds(work(layout), 1e12, shared=True) >= alone
    assert seconds(work(Layout(data=4)), 1e12, shared=False) == pytest.approx(alone / 4)


def test_proposals_take_whole_models_first_then_stages_then_slices() -> None:
    def best(gigabytes: int, **changes: Any) -> Layout:
        return proposals(work(**changes), 8, gigabytes * GB)[0].layout

    assert best(400) == Layout(data=8)
    assert best(120) == Layout(data=4, pipeline=2)
    assert best(30) == Layout(pipeline=8)
    deep = LLAMA_7B.model_copy(update={"layers": 2, "intermediate_size": 11008 * 16})
    assert best(40, shape=deep) == Layout(data=2, tensor=2, pipeline=2)
    assert best(400, sequences=6) == Layout(data=6)
    assert proposals(work(), 2, 10 * GB) == []


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(Path("configs/quickstart.yaml"), [], "64GiB", 6, "fp32", 1152)
    said = capsys.readouterr().out
    assert "681,536 parameters, fp32" in said
    assert "18 sequences, 576 tokens" in said
    assert "square-root rule (customary for AdamW) gives 2.83e-03, the linear rule" in said
    assert "warm-up: 50 of 1400 steps, 3.6%" in said
    assert "parallel {data: 6, tensor: 1, pipeline: 1}" in said
    assert "at most here, all processes on its cores" in said
    assert "each with such a machine" not in said
    more = ["pretrain.parallel.data=2"]
    print_plan(Path("configs/quickstart.yaml"), more, None, None, "fp32", None)
    assert "at most, each with such a machine" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["64", "GiB", "-1GiB", "nanGiB", "infGiB", "64 bananas", "0GB"])
def test_a_size_needs_a_number_and_a_unit(text: str) -> None:
    said = f"--device-memory: is {text}; a number above 0 and a unit"
    with pytest.raises(BadInput, match=said):
        print_plan(Path("configs/quickstart.yaml"), [], text, 8, "fp32", None)


@pytest.mark.parametrize("added", [0, 3])
def test_a_unigram_tokenizer_is_planned_for_as_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], added: int
) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(models.Unigram([(f"{n}", -1.0) for n in range(900 - added)], unk_id=0))
    tokenizer.add_special_tokens([f"<{n}>" for n in range(added)])
    tokenizer.save(str(path))
    assert isinstance(json.loads(path.read_text())["model"]["vocab"], list)
    override = f"corpus.tokenizer={{file: {path}}}"
    print_plan(Path("configs/quickstart.yaml"), [override], None, None, "fp32", None)
    assert "681,536 parameters, fp32" in capsys.readouterr().out  # as with a vocabulary of 900


@pytest.mark.parametrize("vocabulary", ["[]", "5", "{}"])
def test_a_tokenizer_without_a_vocabulary_is_refused(tmp_path: Path, vocabulary: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(f'{{"model": {{"vocab": {vocabulary}}}}}')
    override = f"corpus.tokenizer={{file: {path}}}"
    with pytest.raises(BadInput, match=r"corpus.tokenizer.file: .* holds no vocabulary; names"):
        print_plan(Path("configs/quickstart.yaml"), [override], None, None, "fp32", None)


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ('{"model": {"vocab": {"a": 1}}, "added_tokens": [{}]}', "null"),
        ('{"model": {"vocab": {"a": 1}}, "added_tokens": 5}', "null"),
        ('{"model": {"vocab": {"a": "b"}}}', "'b'"),
        ('{"model": {"vocab": {"a": 1e400}}}', "inf"),
    ],
)
def test_a_tokenizer_whose_ids_are_no_numbers_is_refused(
    tmp_path: Path, tokenizer: str, said: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer)
    override = f"corpus.tokenizer={{file: {path}}}"
    with pytest.raises(BadInput, match=f"tokenizer.json has the token id {said}; a number from"):
        print_plan(Path("configs/quickstart.yaml"), [override], None, None, "fp32", None)
