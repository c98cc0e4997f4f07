"""curves.csv: what a run writes there is what TensorBoard shows of it, also once it has been resumed."""

from few_steps import FEW_STEPS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mpx.training.curves import TAGS, CurveFile, rows

LOG = ("model=mlp", "precision=amp", "trainer.log_every_n_steps=1", "numerics.every=1", *FEW_STEPS)


def written(folder):
    return [tuple(row.split(",")[:2]) for row in rows(folder / "curves.csv")]


def test_a_run_writes_what_tensorboard_shows(train):
    ran = train(*LOG)
    events = EventAccumulator(str(ran.folder), size_guidance={"scalars": 0}).Reload()
    expected = {(tag, event.step): event.value for tag in TAGS for event in events.Scalars(tag)}
    found = {(tag, int(step)): float(value) for tag, step, value in (row.split(",") for row in rows(ran.folder / "curves.csv"))}
    assert found.keys() == expected.keys()
    assert {tag for tag, _ in found} == set(TAGS)
    assert all(abs(found[key] - expected[key]) <= 1e-6 * abs(expected[key]) for key in found)


def test_a_resumed_run_drops_the_rows_that_it_writes_again(tmp_path):
    first = CurveFile(tmp_path, 0)
    for step in range(5):
        first.append({"train/loss": 1.0, "train/lr": 0.1}, step)
    first.close()
    again = CurveFile(tmp_path, 3)
    again.append({"train/loss": 2.0}, 3)
    again.close()
    assert rows(tmp_path / "curves.csv") == [*(f"train/loss,{step},1.0" for step in range(3)), "train/loss,3,2.0"]
    CurveFile(tmp_path, 0).close()
    assert rows(tmp_path / "curves.csv") == []


def test_a_resumed_run_drops_damaged_rows(tmp_path):
    (tmp_path / "curves.csv").write_text("tag,step,value\ntrain/loss,1,0.5\n\ntrain/loss\n\0\0\0\ntrain/loss,x,0.5\ntrain/loss,2,0.25\n")
    CurveFile(tmp_path, 3).close()
    assert rows(tmp_path / "curves.csv") == ["train/loss,1,0.5", "train/loss,2,0.25"]


def test_a_resumed_run_whose_beginning_has_only_events_leaves_its_curves_to_them(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").touch()
    file = CurveFile(tmp_path, 3)
    file.append({"train/loss": 2.0}, 3)
    file.close()
    assert not (tmp_path / "curves.csv").exists()


def test_a_killed_run_leaves_whole_lines(tmp_path):
    file = CurveFile(tmp_path, 0)
    file.append({"train/loss": 0.1, "val/loss": 1 / 3}, 7)
    assert (tmp_path / "curves.csv").read_text() == f"tag,step,value\ntrain/loss,7,0.1\nval/loss,7,{1 / 3}\n"
