"""The record of a run: a resumed run goes on where its checkpoint stands, not where it was cut."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stages.pretrain.record import COLUMNS, Recorder, Row, draw


def row(step: int, validation: float | None = None) -> Row:
    return Row(step, 5.0 / step, 0.1 * step, 1.0, 1, 100.0, validation)


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    first = Recorder(tmp_path, resumed_at=None)
    for step in range(1, 8):
        first.add(row(step, 0.5 if step == 4 else None))
    first.flush()
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("8,1.0,0.")  # killed while writing
    second = Recorder(tmp_path, resumed_at=5)
    for step in range(6, 11):
        second.add(row(step))
    second.close()
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", *map(str, range(1, 11))]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = events.Scalars("train/loss")
    assert [event.step for event in losses] == list(range(1, 11))
    assert abs(losses[3].value - 1.25) < 1e-6
    assert [event.step for event in events.Scalars("validation/loss")] == [4]
    assert {f"train/{name}" for name in COLUMNS[1:] if name != "validation_loss"} | {
        "validation/loss"
    } == set(events.Tags()["scalars"])
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_pass_through_the_file_unchanged(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_at=None)
    times = {"data_seconds": 1 / 7, "compute_seconds": 1 / 9, "communication_seconds": 1e-9}
    exact = Row(
        1,
        1 / 3,
        2e-5 / 7,
        float("inf"),
        0,
        12.5,
        None,
        mfu=1 / 11,
        **times,
        loss_scale=2.0,
        spike=1,
    )
    recorder.add(exact)
    recorder.flush()
    assert Recorder(tmp_path, resumed_at=1).rows == [exact]


def steps(folder: Path) -> list[str]:
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [line.split(",")[0] for line in lines[1:]]


def test_killed_right_after_resuming_the_past_is_still_there(tmp_path: Path) -> None:
    first = Recorder(tmp_path, resumed_at=None)
    for step in range(1, 6):
        first.add(row(step))
    first.flush()
    again = Recorder(tmp_path, resumed_at=5)  # and killed before it has flushed anything
    assert steps(tmp_path) == ["1", "2", "3", "4", "5"]
    again.close()


def test_a_run_that_begins_anew_has_no_row_of_the_one_before(tmp_path: Path) -> None:
    before = Recorder(tmp_path, resumed_at=None)
    before.add(Row(0, 5.0, 0.0, 0.0, 1, 0.0, 5.0))
    before.flush()  # killed before its first checkpoint
    again = Recorder(tmp_path, resumed_at=None)
    again.add(Row(0, 5.0, 0.0, 0.0, 1, 0.0, 5.0))
    again.flush()
    assert steps(tmp_path) == ["0"]


def test_spikes_are_marked_on_the_curve(tmp_path: Path) -> None:
    rows = [row(step) for step in range(1, 30)]
    draw(rows, tmp_path / "plain.png")
    rows[20].spike = 1
    draw(rows, tmp_path / "marked.png")
    assert (tmp_path / "plain.png").read_bytes() != (tmp_path / "marked.png").read_bytes()
