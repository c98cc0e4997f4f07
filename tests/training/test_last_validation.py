"""The validation of a record is of the weights that are tested, wherever the training ends."""

import pytest
from few_steps import FEW_STEPS

from mpx.runs.result import rows

# The test data are the validation data.
OWN = [
    "model=mlp",
    "data=custom",
    "data._target_=own_data.make_data",
    "data.batch_size=32",
    *FEW_STEPS,
    "trainer.limit_train_batches=3",
]
WITHIN, LEFT_OUT = ["trainer.max_steps=4"], ["trainer.check_val_every_n_epoch=2"]


def of(stage, metrics):
    return {name.split("/")[1]: value for name, value in metrics.items() if name.startswith(stage)}


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["trainer.max_epochs=2"], [3, 6]),
        (["trainer.max_epochs=2", *WITHIN], [3, 4]),
        (["trainer.max_epochs=2", "trainer.max_steps=1", "trainer.ema_decay=0.9"], [1]),
        (["trainer.max_epochs=3", *LEFT_OUT, "trainer.ema_decay=0.9"], [6, 9]),
        (["trainer.max_epochs=3", *LEFT_OUT, *WITHIN, "trainer.accumulate_grad_batches=2"], [4]),
        (["trainer.max_epochs=3", *LEFT_OUT, "trainer.max_steps=3"], [3]),
    ],
)
def test_a_run_ends_with_a_validation(train, words, steps):
    """Also one that was killed after its last checkpoint."""
    ran = train(*OWN, *words)
    assert ran.code == 0, ran.err
    known, curve = ran.record["metrics"], rows(ran.folder / "curves.csv")
    assert of("val", known) == of("test", known)
    assert [int(row.split(",")[1]) for row in curve if row.startswith("val/loss")] == steps
    (ran.folder / "result.json").unlink()
    again = train(*OWN, *words, "if_exists=resume")
    assert again.record["metrics"] == known
    assert rows(again.folder / "curves.csv") == curve
