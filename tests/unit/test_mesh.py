"""Layouts: who sits where, what each holds, and what is refused."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from stages.engine.mesh import Layout, Place, bubble, is_divided, pieces
from stages.pretrain.config import PretrainConfig
from tests.tiny_models import random_weights, tiny

LAYOUTS = [Layout(2, 2, 3), Layout(1, 4, 1), Layout(3, 1, 2), Layout(1, 1, 5)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_has_its_own_place_and_groups_agree(layout: Layout) -> None:
    places = [Place(layout, rank) for rank in range(layout.size)]
    assert len({(p.stage, p.data, p.tensor) for p in places}) == layout.size
    for place in places:
        assert place.at() == place.rank
        for name in ("tensor_ranks", "data_ranks", "pipeline_ranks", "end_ranks", "model_ranks"):
            ranks = getattr(place, name)()
            if name != "end_ranks" or place.first or place.last:
                assert place.rank in ranks
                assert all(getattr(places[rank], name)() == ranks for rank in ranks)
    assert places[0].tensor_ranks() == list(range(layout.tensor))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pieces_cover_the_model_once(family: Any, tied: bool, layout: Layout) -> None:
    shape = tiny(
        family,
        layers=7,
        heads=8,
        kv_heads=4,
        intermediate_size=96,
        tied_head=tied,
        vocab_size=264,
    )
    weights = random_weights(shape)
    found = {name: np.zeros_like(value) for name, value in weights.items()}
    for rank in range(layout.size):
        place = Place(layout, rank)
        for piece in pieces(shape, place).values():
            copies = 1 if is_divided(piece.name) else layout.tensor
            if tied and piece.name == "model.embed_tokens.weight" and layout.pipeline > 1:
                copies *= 2
            found[piece.name][piece.index] += weights[piece.name][piece.index] / (
                copies * layout.data
            )
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_layers_are_spread_evenly_and_the_last_stage_has_no_more() -> None:
    assert [len(Layout(pipeline=3).layers(stage, 8)) for stage in range(3)] == [3, 3, 2]
    assert [i for s in range(3) for i in Layout(pipeline=3).layers(s, 8)] == list(range(8))


def test_bubble() -> None:
    assert bubble(1, 4) == 0
    assert bubble(4, 4) == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("parallel", "sentence"),
    [
        ({"tensor": 3}, "parallel.tensor: is 3, which does not divide model.heads 8"),
        ({"tensor": 8}, "parallel.tensor: is 8, which does not divide model.kv_heads 4"),
        ({"tensor": 4}, "parallel.tensor: is 4, which does not divide model.intermediate_size 90"),
        ({"pipeline": 3}, "parallel.pipeline: is 3; the model has only 2 layers"),
        ({"zero": 1}, "zero 1 divides AdamW's state over data processes, and data is 1"),
        ({"data": 3}, "8 sequences a step do not divide over parallel.data 3"),
        ({"zero": 2, "data": 2}, "Input should be 0 or 1"),
        ({"tensor": 0}, "greater than 0"),
    ],
)
def test_what_does_not_divide_is_refused(parallel: dict[str, int], sentence: str) -> None:
    model = {"hidden_size": 32, "layers": 2, "heads": 8, "kv_heads": 4, "intermediate_size": 90}
    config = {"model": model, "batch": {"sequence_length": 8, "global_size": 8}, "steps": 1}
    PretrainConfig.model_validate(config)
    with pytest.raises(ValidationError, match="(?s).*" + sentence.replace(".", r"\.")):
        PretrainConfig.model_validate(config | {"parallel": parallel})
