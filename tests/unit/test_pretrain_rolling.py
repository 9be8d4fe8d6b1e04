"""Which checkpoint is used after a crash, and which ones are ever removed."""

from pathlib import Path

import numpy as np
import pytest

from stages.pretrain.rolling import DataPosition, Rolling, State

TENSOR = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}


def state(step: int) -> State:
    return State(
        step=step,
        updates=step,
        skipped_in_a_row=0,
        tokens=10 * step,
        recent_losses=[1.5],
        data=DataPosition(seed=1, epoch=0, index=step),
        rng={},
    )


def save(rolling: Rolling, *steps: int) -> None:
    for step in steps:
        tensor = {"w": TENSOR["w"] + step}
        rolling.save(state(step), tensor, TENSOR, TENSOR)


def steps_in(directory: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in directory.glob("step-*"))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_by_number_are_kept(tmp_path: Path, keep: int) -> None:
    rolling = Rolling(tmp_path, keep)
    save(rolling, 9, 10, 99, 100)
    assert steps_in(tmp_path) == [9, 10, 99, 100][-keep:]
    latest, complaints = rolling.latest()
    assert latest is not None
    assert latest.state.step == 100
    assert complaints == []


def test_what_was_saved_comes_back_bitwise(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path, 2)
    rng = np.random.default_rng(0)
    values = [{"w": rng.standard_normal((4, 5)).astype(np.float32)} for _ in range(3)]
    rolling.save(state(7), *values)
    latest, _ = rolling.latest()
    assert latest is not None
    means, squares = latest.moments()
    for found, expected in zip((latest.tensors(), means, squares), values, strict=True):
        assert set(found) == {"w"}
        assert np.array_equal(found["w"], expected["w"])


def test_what_it_did_not_write_stays(tmp_path: Path) -> None:
    foreign = [tmp_path / name for name in ("step-00000001", "step-best", "notes", "step-3")]
    for path in foreign:
        path.mkdir()
        (path / "mine.txt").write_text("keep")
    (tmp_path / "step-00000004").mkdir()
    (tmp_path / "step-00000002").symlink_to(tmp_path / "notes")
    rolling = Rolling(tmp_path, 1)
    save(rolling, 5, 6)
    rolling.clean(rolling.latest()[0])
    assert all((path / "mine.txt").read_text() == "keep" for path in foreign)
    assert (tmp_path / "step-00000002").is_symlink()
    assert (tmp_path / "step-00000004").is_dir()
    assert not (tmp_path / "step-00000005").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink], ids=["cut", "changed", "missing"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_broken_one_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: object, name: str
) -> None:
    if damage is flip and name == "state.json":
        damage = cut
    rolling = Rolling(tmp_path, 3)
    save(rolling, 10, 20, 30)
    damage(tmp_path / "step-00000030" / name)  # type: ignore[operator]
    latest, complaints = rolling.latest()
    assert latest is not None
    assert latest.state.step == 20
    assert len(complaints) == 1
    assert "step-00000030" in complaints[0]
    assert name in complaints[0]
    # Going on from 20 with keep 1 must not take the broken 30 for the newest.
    rolling.clean(latest)
    save(Rolling(tmp_path, 1), 25)
    assert steps_in(tmp_path) == [25]


def test_a_renamed_directory_is_not_believed(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path, 3)
    save(rolling, 10)
    (tmp_path / "step-00000010").rename(tmp_path / "step-00000090")
    assert rolling.latest()[0] is None


def test_nothing_and_only_broken_ones(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path / "not there", 2)
    assert rolling.latest() == (None, [])
    rolling.clean(None)
    rolling = Rolling(tmp_path, 2)
    save(rolling, 1, 2)
    for step in (1, 2):
        cut(tmp_path / f"step-0000000{step}" / "model.safetensors")
    latest, complaints = rolling.latest()
    assert latest is None
    assert len(complaints) == 2


def test_a_failed_write_leaves_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolling = Rolling(tmp_path, 1)
    save(rolling, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stages.pretrain.rolling.publish", full)
    with pytest.raises(OSError, match="No space"):
        save(rolling, 2)
    latest, complaints = Rolling(tmp_path, 1).latest()
    assert latest is not None
    assert latest.state.step == 1
    assert complaints == []
    # What is half takes no room on a disk that is full.
    assert not list(tmp_path.glob(".step-*.tmp"))
