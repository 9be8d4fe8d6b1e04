"""Spikes, shares of time, and the collectives that are counted for it."""

import pytest

from stages.engine.communication import AllReduce, all_reduces
from stages.engine.groups import Mesh
from stages.engine.mesh import Layout, Place, local_shape
from stages.pretrain.timing import Times, is_spike, step_flops
from tests.tiny_models import tiny
from tests.unit.test_pretrain_config import config


def test_a_spike_stands_out_of_what_was_before() -> None:
    noisy = [3.0, 3.2] * 10
    assert not is_spike(3.5, noisy)  # five deviations
    assert is_spike(3.8, noisy)
    assert not is_spike(2.0, noisy)
    still = [3.0] * 20
    assert not is_spike(3.1, still)  # not by 5 percent
    assert is_spike(3.2, still)
    assert not is_spike(9.0, still[1:])  # too early to say
    assert not is_spike(float("nan"), still)  # skipped, and said so


def test_times_add_up() -> None:
    times = Times()
    for _ in range(2):
        times.add(Times(data=0.5, compute=2.0, communication=1.0, checkpoint=1.0, validation=0.5))
    assert times.step == 7.0
    assert times.sentence() == (
        "10.0 s: data 1.0 s (10.0%), compute 4.0 s (40.0%), communication 2.0 s (20.0%), "
        "checkpoint 2.0 s (20.0%), validation 1.0 s (10.0%)"
    )


def test_flops_of_a_step_do_not_depend_on_the_layout() -> None:
    def of(**changes: object) -> int:
        found = config({"global_size": 8}, **changes)
        return step_flops(found, found.shape(64, None))

    assert of() == of(parallel={"data": 2}) > 0


@pytest.mark.parametrize(("pipeline", "recompute"), [(1, False), (1, True), (2, False)])
def test_all_reduces_of_a_step(pipeline: int, recompute: bool) -> None:
    layout = Layout(data=2, tensor=2, pipeline=pipeline)
    shape = tiny(layers=4)
    for stage in range(pipeline):
        place = Place(layout, stage * 4)
        mesh = Mesh(place, data="d", tensor="t")
        again = recompute or not place.last
        found = all_reduces(local_shape(shape, place), mesh, 10, 3, [7, 7, 9], again)
        assert (found[AllReduce("d", 7)], found[AllReduce("d", 9)]) == (2, 1)
        if recompute:  # 6 a layer, the embedding's twice and the head's
            streams = 4 * 6 + 3
        elif pipeline == 1:  # 4 a layer, the embedding's and the head's
            streams = 4 * 4 + 2
        elif stage == 0:  # 2 forward twice, 2 backward; the embedding's twice
            streams = 2 * 6 + 2
        else:
            streams = 2 * 4 + 1
        assert found[AllReduce("t", 10 * 32)] == 3 * streams
        assert found[AllReduce("t", 2 * 2 * 10)] == (3 if place.last else 0)
