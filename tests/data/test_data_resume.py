"""Under Lightning: resuming gives the batches of an unbroken run, with both loaders, wherever the checkpoint
was written.
"""

import hashlib

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from silent import silent_trainer

import mpx.data
from mpx.data.datamodule import DataModule

# what Lightning itself does with torch 2.15, and advice on loggers and workers that does not concern these
# tests
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytorch_lightning.utilities.warnings.PossibleUserWarning"),
]
STEPS = 5  # batches in an epoch


class Recorder(pl.LightningModule):
    """Learns a little and writes down every batch that it sees."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.seen = []

    def training_step(self, batch, index):
        x, y = batch
        content = x.numpy().tobytes() + y.numpy().tobytes()
        self.seen.append((self.current_epoch, index, hashlib.sha1(content).hexdigest()))
        return torch.nn.functional.cross_entropy(self.layer(x.flatten(1)), y)

    def validation_step(self, batch, index):
        """The loaders of a validation come between those of two epochs."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stop(pl.Callback):
    """Ends training after a step as a crash would, after the checkpoint of that step was written."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            raise KeyError("stopped")


def trainer(folder, checkpoint, stop=None):
    callbacks = [ModelCheckpoint(folder, filename="last", **checkpoint)] + ([Stop(stop)] if stop else [])
    given = {"devices": 1, "use_distributed_sampler": False, "enable_checkpointing": True}
    return silent_trainer(max_epochs=3, callbacks=callbacks, **given)


@pytest.fixture
def fit(config, tmp_path):
    def run(loader, checkpoint, stop=None, resume=False, seed=0):
        cfg = config("digits", batch_size=1297 // STEPS, loader=loader, workers=2)
        module, model = DataModule(mpx.data.load(cfg), cfg, seed, loader, {}), Recorder()
        path = tmp_path / "last.ckpt" if resume else None
        try:
            trainer(tmp_path, checkpoint, stop).fit(
                model, datamodule=module, ckpt_path=path, weights_only=False
            )
        except KeyError:
            assert stop
        return model.seen

    return run


@pytest.mark.parametrize("step", [3, 7, STEPS, 2 * STEPS])
def test_resume_after_a_step(fit, step):
    checkpoint = {"every_n_train_steps": step}
    whole = fit("resident", {"every_n_train_steps": 100})
    before = fit("resident", checkpoint, stop=step)
    after = fit("resident", checkpoint, resume=True)
    assert len(whole) == 3 * STEPS
    assert len(before) == step
    assert before + after == whole


@pytest.mark.parametrize("on_train_end", [True, False])
def test_resume_after_an_epoch(fit, on_train_end):
    checkpoint = {"save_on_train_epoch_end": on_train_end}
    before = fit("resident", checkpoint, stop=STEPS + 2)
    after = fit("resident", checkpoint, resume=True)
    assert before[:STEPS] + after == fit("resident", {"every_n_train_steps": 100})


def test_resume_with_workers_and_equality_with_resident(fit):
    before = fit("workers", {"every_n_train_steps": 7}, stop=7)
    after = fit("workers", {"every_n_train_steps": 7}, resume=True)
    assert before + after == fit("resident", {"every_n_train_steps": 100})
