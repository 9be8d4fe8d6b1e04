"""Checkpoints that several processes write: the bytes of one process's, whatever the layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.engine import shards
from stages.engine.mesh import Layout, Place, pieces
from stages.pretrain.rolling import DataPosition, Rolling, State
from tests.tiny_models import random_weights, tiny

SHAPE = tiny("qwen2", layers=5, heads=8, kv_heads=4, head_dim=4, vocab_size=264)


def state(step: int) -> State:
    return State(
        step=step,
        updates=step,
        skipped_in_a_row=0,
        tokens=0,
        recent_losses=[],
        data=DataPosition(seed=0, epoch=0, index=0),
        rng={},
    )


def parts(rolling: Rolling, layout: Layout, tensors: dict[str, Any], step: int) -> None:
    """What the processes of a layout write, one after the other."""
    rolling.begin(step, SHAPE.tensor_shapes())
    for rank in range(layout.size):
        place = Place(layout, rank)
        if place.data > 0:
            continue
        held = shards.to_engine(SHAPE, place, tensors)
        own = [
            list(shards.own(place, shards.to_hf(SHAPE, place, {n: v * k for n, v in held.items()})))
            for k in (1, 2, 3)
        ]
        rolling.part(step, *own)
    rolling.finish(state(step))


@pytest.mark.parametrize("layout", [Layout(2, 2, 2), Layout(tensor=4), Layout(pipeline=5)])
def test_parts_make_the_file_that_one_process_writes(tmp_path: Path, layout: Layout) -> None:
    tensors = random_weights(SHAPE)
    one, many = Rolling(tmp_path / "one", 2), Rolling(tmp_path / "many", 2)
    means, squares = ({n: v * k for n, v in tensors.items()} for k in (2, 3))
    one.save(state(7), tensors, means, squares)
    parts(many, layout, tensors, 7)
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        at = Path("step-00000007") / name
        assert (tmp_path / "many" / at).read_bytes() == (tmp_path / "one" / at).read_bytes(), name


def test_what_one_layout_wrote_another_reads(tmp_path: Path) -> None:
    tensors = random_weights(SHAPE)
    rolling = Rolling(tmp_path, 2)
    parts(rolling, Layout(pipeline=5), tensors, 1)
    found, _ = rolling.latest()
    assert found is not None
    for rank in range(8):
        place = Place(Layout(1, 4, 2), rank)
        for piece, value in shards.to_hf(
            SHAPE, place, shards.to_engine(SHAPE, place, found.tensors())
        ):
            assert np.array_equal(value, tensors[piece.name][piece.index])


def test_a_part_that_is_missing_leaves_nothing_that_counts(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path, 2)
    rolling.save(state(1), *[random_weights(SHAPE)] * 3)
    rolling.begin(2, SHAPE.tensor_shapes())  # and here all are killed
    found, complaints = rolling.latest()
    assert found is not None
    assert found.state.step == 1
    assert complaints == []
    rolling.clean(found)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_tied_copies_are_written_by_the_first_stage_alone() -> None:
    places = [Place(Layout(pipeline=2), rank) for rank in range(2)]
    held = [
        [
            p.name
            for p, _ in shards.own(place, ((p, np.empty(0)) for p in pieces(SHAPE, place).values()))
        ]
        for place in places
    ]
    assert SHAPE.tied_head
    assert "model.embed_tokens.weight" in held[0]
    assert "model.embed_tokens.weight" not in held[1]
    assert sorted(held[0] + held[1]) == sorted(SHAPE.tensor_shapes())
