"""Hugging Face directories: what is written reads back, what is wrong is named, no code runs."""

import json
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.fields import size_in_bytes
from artifacts.hf_model import (
    EMBEDDING,
    HEAD,
    NUMPY,
    copy_configs,
    read_model,
    tokenizer_problems,
    write_weights,
)
from artifacts.tokenizer_files import read_tokenizer
from artifacts.weights import INDEX, SINGLE
from tests.tiny_models import SPECIAL, VOCAB, random_weights, tiny, write_hf, write_tokenizer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def edit(path: Path, **changes: object) -> None:
    """Change fields of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_model_reads_back(tmp_path: Path, family, tied: bool, kv_heads: int) -> None:
    a = tiny(family, tied_head=tied, kv_heads=kv_heads)
    weights = write_hf(tmp_path, a)
    model = read_model(tmp_path)
    assert model.architecture == a
    assert model.dtype == "fp32"
    assert (model.bos_id, model.eos_ids, model.pad_id) == (None, [0], 1)
    assert list(model.weights) == list(a.tensor_shapes())
    assert (HEAD in model.weights) == (not tied)
    for name, value in weights.items():
        assert model.weights.raw(name).tobytes() == value.tobytes()


@pytest.mark.parametrize("limit", [1, 5_000, 40_000])
def test_shards_hold_the_same_bytes_as_one_file(tmp_path: Path, limit: int) -> None:
    a = tiny("qwen2", tied_head=False)
    write_hf(tmp_path / "one", a)
    write_hf(tmp_path / "many", a, max_shard_bytes=limit)
    assert (tmp_path / "one" / SINGLE).is_file()
    assert not (tmp_path / "many" / SINGLE).exists()
    index = json.loads((tmp_path / "many" / INDEX).read_text())
    assert index["weight_map"].keys() == a.tensor_shapes().keys()
    assert index["metadata"]["total_size"] == 4 * a.parameter_count()
    assert set(index["weight_map"].values()) == {
        path.name for path in (tmp_path / "many").glob("*.safetensors")
    }
    one, many = read_model(tmp_path / "one"), read_model(tmp_path / "many")
    for name in a.tensor_shapes():
        assert one.weights.raw(name).tobytes() == many.weights.raw(name).tobytes()


def test_a_shard_is_full_to_the_last_byte_and_no_further(tmp_path: Path) -> None:
    a = tiny(layers=1)
    sizes = [4 * int(np.prod(shape)) for shape in a.tensor_shapes().values()]
    for limit, first in ((sizes[0] + sizes[1], 2), (sizes[0] + sizes[1] - 1, 1)):
        directory = tmp_path / str(limit)
        write_hf(directory, a, max_shard_bytes=limit)
        weight_map = json.loads((directory / INDEX).read_text())["weight_map"]
        names = list(weight_map.values())
        assert names.count(names[0]) == first


def test_bf16_rounds_to_nearest_even(tmp_path: Path) -> None:
    a = tiny(layers=1)
    weights = random_weights(a)
    # 1 + 2^-8 lies half way between two bf16 numbers, 1 + 3 * 2^-8 half way between the next two.
    weights["model.norm.weight"][:3] = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20]
    write_hf(tmp_path, a, weights, dtype="bf16")
    model = read_model(tmp_path)
    assert model.dtype == "bf16"
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.weights.raw("model.norm.weight").dtype == ml_dtypes.bfloat16
    assert model.weights["model.norm.weight"][:3].tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_dtype_stores_the_cast_value(tmp_path: Path, dtype) -> None:
    a = tiny(layers=1)
    weights = write_hf(tmp_path, a, dtype=dtype)
    model = read_model(tmp_path)
    for name, value in weights.items():
        assert model.weights.raw(name).tobytes() == value.astype(NUMPY[dtype]).tobytes()
        assert model.weights[name].dtype == np.float32


@pytest.mark.parametrize(
    ("value", "dtype", "said"),
    [
        (np.nan, "fp32", "model.norm.weight has values that are not finite"),
        (np.inf, "bf16", "model.norm.weight has values that are not finite"),
        (1e5, "fp16", "dtype: is 'fp16'; tensor model.norm.weight reaches 1e+05"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(tmp_path: Path, value, dtype, said: str) -> None:
    a = tiny(layers=1)
    weights = random_weights(a)
    weights["model.norm.weight"][3] = value
    with pytest.raises(BadInput, match=said.replace("+", r"\+")):
        write_weights(tmp_path, a, weights.__getitem__, dtype, 1 << 30)


def test_a_tied_flag_with_another_head_is_refused(tmp_path: Path) -> None:
    a = tiny(layers=1)
    weights = write_hf(tmp_path, a)
    save_file(weights | {HEAD: weights[EMBEDDING]}, str(tmp_path / SINGLE))
    assert HEAD not in read_model(tmp_path).weights  # equal: the embedding serves
    other = weights[EMBEDDING].copy()
    other[5, 5] += 1e-6
    save_file(weights | {HEAD: other}, str(tmp_path / SINGLE))
    with pytest.raises(BadInput, match=r"tie_word_embeddings, but lm_head.weight differs"):
        read_model(tmp_path)


def test_an_untied_model_without_head_is_refused(tmp_path: Path) -> None:
    write_hf(tmp_path, tiny())
    edit(tmp_path / "config.json", tie_word_embeddings=False)
    with pytest.raises(BadInput, match=r"tensor lm_head.weight is missing"):
        read_model(tmp_path)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    a = tiny(layers=1)
    weights = write_hf(tmp_path, a)
    whole = np.zeros(weights["model.norm.weight"].shape, np.int32)
    save_file(weights | {"model.norm.weight": whole}, str(tmp_path / SINGLE))
    with pytest.raises(BadInput, match=r"model.norm.weight is stored as int32"):
        read_model(tmp_path)


def test_mixed_dtypes_read_but_have_no_single_dtype(tmp_path: Path) -> None:
    a = tiny(layers=1)
    weights = write_hf(tmp_path, a)
    half = weights["model.norm.weight"].astype(np.float16)
    save_file(weights | {"model.norm.weight": half}, str(tmp_path / SINGLE))
    model = read_model(tmp_path)
    with pytest.raises(BadInput, match="float16, float32"):
        _ = model.dtype


def test_old_inv_freq_buffers_are_left_aside(tmp_path: Path) -> None:
    a = tiny(layers=1)
    weights = write_hf(tmp_path, a)
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    save_file(weights | buffer, str(tmp_path / SINGLE))
    assert list(read_model(tmp_path).weights) == list(a.tensor_shapes())


def test_code_is_mentioned_left_behind_and_never_run(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_hf(source, tiny(layers=1))
    target.mkdir()
    trap = tmp_path / "ran"
    (source / "modeling_own.py").write_text(f"open({str(trap)!r}, 'w')\n")
    edit(source / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    edit(source / "tokenizer_config.json", auto_map={"AutoTokenizer": "modeling_own.Own"})
    model = read_model(source)
    assert any("auto_map is ignored" in note for note in model.notes)
    assert any("modeling_own.py: is ignored" in note for note in model.notes)
    copy_configs(model, target)
    read_tokenizer(source).copy_to(target)
    assert not trap.exists()
    assert not list(target.glob("*.py"))
    assert "auto_map" not in (target / "config.json").read_text()
    assert "auto_map" not in (target / "tokenizer_config.json").read_text()


def test_a_model_that_needs_its_code_is_refused_with_a_word_on_it(tmp_path: Path) -> None:
    write_hf(tmp_path, tiny(layers=1))
    edit(tmp_path / "config.json", model_type="own", auto_map={"AutoConfig": "own.Own"})
    with pytest.raises(BadInput, match="model_type is 'own'") as caught:
        read_model(tmp_path)
    assert "code of a model is never run" in str(caught.value)


def test_tokenizer_and_model_must_agree(tmp_path: Path) -> None:
    write_hf(tmp_path, tiny(layers=1))
    assert tokenizer_problems(read_model(tmp_path), read_tokenizer(tmp_path)) == []
    edit(tmp_path / "config.json", eos_token_id=2)
    (problem,) = tokenizer_problems(read_model(tmp_path), read_tokenizer(tmp_path))
    assert problem.endswith("eos_token is token 0, the model's is 2")
    edit(tmp_path / "config.json", eos_token_id=[2, 0])
    assert tokenizer_problems(read_model(tmp_path), read_tokenizer(tmp_path)) == []


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(tmp_path: Path) -> None:
    a = tiny(layers=1, vocab_size=VOCAB - 10)
    write_hf(tmp_path, a)
    (problem,) = tokenizer_problems(read_model(tmp_path), read_tokenizer(tmp_path))
    assert f"token ids up to {VOCAB - 1}, the model's vocabulary ends at {VOCAB - 11}" in problem


def test_special_tokens_the_tokenizer_lacks_are_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    edit(tmp_path / "tokenizer_config.json", eos_token="<eos>", pad_token={"content": "<pad>"})
    with pytest.raises(BadInput) as caught:
        read_tokenizer(tmp_path)
    assert len(caught.value.problems) == 2
    assert "eos_token is '<eos>'" in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_broken_tokenizer_files_are_named(tmp_path: Path, name: str, content: str | None) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / name
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(BadInput, match=name):
        read_tokenizer(tmp_path)


def test_a_missing_special_tokens_map_is_written_anew(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    write_tokenizer(source)
    expected = json.loads((source / "special_tokens_map.json").read_text())
    (source / "special_tokens_map.json").unlink()
    (source / "chat_template.jinja").write_text("{{ messages }}")
    read_tokenizer(source).copy_to(target)
    assert json.loads((target / "special_tokens_map.json").read_text()) == expected
    assert (target / "chat_template.jinja").read_text() == "{{ messages }}"
    assert expected["pad_token"] == SPECIAL[1]


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2_000_000_000), ("500 MB", 500_000_000), ("1.5KiB", 1536), ("1gib", 1 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "2", "GB", "-1GB", "0GB", "2PB", "1e3MB", "2GB more"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="would be right"):
        size_in_bytes(text)


def test_an_architecture_survives_its_config(tmp_path: Path) -> None:
    for family in FAMILIES:
        a = tiny(family, rope_theta=500000.0, rms_norm_eps=1e-5, max_positions=4096)
        config = a.to_hf(dtype="float32", bos_id=None, eos_id=0, pad_id=None)
        assert Architecture.from_hf(json.loads(json.dumps(config))) == a


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_writing_takes_the_memory_of_a_piece_not_of_a_tensor(tmp_path: Path, dtype: str) -> None:
    a = tiny(layers=1, vocab_size=60_000, hidden_size=64)  # an embedding of 15 MB in fp32
    source, target = tmp_path / "source", tmp_path / "target"
    write_hf(source, a, dtype="bf16")
    target.mkdir()
    model = read_model(source)
    tracemalloc.start()
    write_weights(target, a, model.weights.raw, dtype, 1 << 30)  # type: ignore[arg-type]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 << 20, f"{most:,} bytes"
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    written = read_model(target).weights
    assert all(np.array_equal(model.weights[name], written[name]) for name in written)
