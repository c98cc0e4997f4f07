"""What one run leaves for TensorBoard: the tags, the final values once, and the steps after a resume."""

import shutil

import pytest
from few_steps import FEW_STEPS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mpx.runs.result import TAGS, rows


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def test_tags_of_a_run(train):
    """Curves.csv has the values of the scalars that a comparison draws."""
    ran = train(
        "model=mlp",
        "precision=amp",
        "sparsity=2of4",
        *FEW_STEPS,
        "trainer.log_every_n_steps=1",
        "numerics.every=1",
    )
    assert len(list(ran.folder.glob("events.*"))) == 1
    events = read(ran.folder)
    tags = set(events.Tags()["scalars"])
    assert tags >= {
        "train/loss", "train/lr", "val/loss", "val/accuracy", "speed/train_samples_per_s",
        "memory/peak_rss_gib",
        "numerics/loss_scale", "numerics/skipped_steps",
        "final/test_accuracy", "final/test_loss", "final/train_time_s", "final/used_memory_gib",
    }  # fmt: skip
    assert "final/train_samples_per_s" not in tags  # of an emulated format, beside those of others
    assert "epoch" not in tags  # which Lightning would add
    assert not any(tag.startswith("hp_metric") or tag.startswith("test/") for tag in tags)
    assert len(events.Scalars("train/loss")) == 2
    (final,) = events.Scalars("final/test_accuracy")
    assert final.value == pytest.approx(ran.record["metrics"]["test/accuracy"], rel=1e-6)
    (scale,) = {event.value for event in events.Scalars("numerics/loss_scale")}
    assert scale == 65536.0
    assert {"config/text_summary", "environment/text_summary"} <= set(events.Tags()["tensors"])
    drawn = (*TAGS, "val/loss", "val/accuracy")
    expected = {(tag, event.step): event.value for tag in drawn for event in events.Scalars(tag)}
    found = {
        (tag, int(step)): float(value)
        for tag, step, value in (row.split(",") for row in rows(ran.folder / "curves.csv"))
    }
    assert {tag for tag, _ in found} == set(drawn)
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_training_loss_is_that_of_a_batch_also_where_gradients_are_accumulated(train):
    """The last of its step. Lightning divides it by accumulate_grad_batches. In the first window of either
    run the weights are the same.
    """
    words = (
        "model=mlp",
        *FEW_STEPS,
        "trainer.log_every_n_steps=1",
        "trainer.limit_train_batches=4",
        "trainer.progress=lines",
    )
    losses = []
    for count in (1, 4):
        ran = train(
            *words, f"trainer.accumulate_grad_batches={count}", "optimizer.lr=1e-12", f"study=of{count}"
        )
        folder = next(ran.outputs.glob(f"of{count}/*/seed0"))
        losses.append(
            [float(row.split(",")[2]) for row in rows(folder / "curves.csv") if row.startswith("train/loss")]
        )
        assert f"loss {losses[-1][-1]:.4f}" in ran.out
    assert len(losses[0]) == 4
    assert losses[0][-1:] == pytest.approx(losses[1], rel=1e-5)


def test_a_run_that_was_killed_between_a_validation_and_its_checkpoint(train):
    """The checkpoint before is of one step less, as after an epoch of one step."""
    words = (
        "model=mlp",
        *FEW_STEPS,
        "trainer.max_epochs=3",
        "trainer.limit_train_batches=1",
        "trainer.log_every_n_steps=1",
    )
    before = train(*words, "trainer.max_steps=2", "study=before")
    whole = before.folder / "checkpoints" / "last.ckpt"
    (folder,) = train(*words, "study=killed").outputs.glob("killed/*/seed0")
    shutil.copy(whole, folder / "checkpoints")
    (folder / "result.json").unlink()
    assert train(*words, "study=killed", "if_exists=resume").code == 0
    events = read(folder)
    for tag in ("train/loss", "val/loss"):
        assert [event.step for event in events.Scalars(tag)] == [1, 2, 3]
        assert [row.split(",")[1] for row in rows(folder / "curves.csv") if row.startswith(tag)] == [
            "1",
            "2",
            "3",
        ]


def test_a_run_that_continues_another_writes_its_curves(train, tmp_path):
    first = train("model=mlp", *FEW_STEPS)
    file = shutil.copy(first.folder / "checkpoints" / "last.ckpt", tmp_path)
    shutil.rmtree(first.outputs)
    again = train("model=mlp", *FEW_STEPS, "trainer.max_epochs=2", f"ckpt_path={file}")
    assert {row.split(",")[1] for row in rows(again.folder / "curves.csv")} == {"4"}
