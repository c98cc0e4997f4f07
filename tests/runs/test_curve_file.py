"""curves.csv when a run is resumed or killed; test_run_events.py compares it with TensorBoard's events."""

from mpx.runs.result import CurveFile, rows


def test_a_resumed_run_drops_the_rows_that_it_writes_again(tmp_path):
    first = CurveFile(tmp_path, 0)
    for step in range(5):
        first.append({"train_loss": 1.0, "train/lr": 0.1}, step)
    first.close()
    again = CurveFile(tmp_path, 3)
    again.append({"train/loss": 2.0}, 3)
    again.close()
    assert rows(tmp_path / "curves.csv") == [
        *(f"train/loss,{step},1.0" for step in range(3)),
        "train/loss,3,2.0",
    ]
    CurveFile(tmp_path, 0).close()
    assert rows(tmp_path / "curves.csv") == []


def test_a_resumed_run_drops_damaged_rows(tmp_path):
    (tmp_path / "curves.csv").write_text(
        "tag,step,value\ntrain/loss,1,0.5\n\ntrain/loss\n\0\0\0\ntrain/loss,x,0.5\ntrain/loss,2,0.25\n"
    )
    CurveFile(tmp_path, 3).close()
    assert rows(tmp_path / "curves.csv") == ["train/loss,1,0.5", "train/loss,2,0.25"]


def test_a_killed_run_leaves_whole_lines(tmp_path):
    file = CurveFile(tmp_path, 0)
    file.append({"train/loss": 0.1, "val/loss": 1 / 3}, 7)
    assert (tmp_path / "curves.csv").read_text() == f"tag,step,value\ntrain/loss,7,0.1\nval/loss,7,{1 / 3}\n"


def test_what_a_run_logs_in_validation_has_the_names_of_its_record(tmp_path):
    file = CurveFile(tmp_path, 0)
    file.append({"val_dice": 0.5, "my dice": 0.25, "test/dice": 1.0}, 7)
    assert rows(tmp_path / "curves.csv") == ["val/dice,7,0.5", "own/my_dice,7,0.25"]
    file.close()
