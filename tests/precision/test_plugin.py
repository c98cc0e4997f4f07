"""Loss scaling inside a real Trainer: the golden sequence, skipped steps, and state that survives a checkpoint."""

import pytest
import pytorch_lightning as pl
import torch

from mpx.precision.modes import MODES
from mpx.precision.plugin import ModePrecision

CPU = torch.device("cpu")


class Ramp(pl.LightningModule):
    """One weight whose gradient at step i is gradients[i]; SGD with learning rate 1, so the weight falls by it."""

    def __init__(self, gradients):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.gradients, self.seen = gradients, []

    def training_step(self, batch, index):
        return (self.weight * self.gradients[index]).sum()

    def on_train_batch_end(self, outputs, batch, index):
        self.seen.append((self.trainer.precision_plugin.scaler.get_scale(), self.weight.item()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def plugin(mode="amp", **scale):
    return ModePrecision(MODES[mode], CPU, emulate=True, loss_scale=scale)


def run(module, precision, tmp_path, **kwargs):
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", plugins=[precision], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, **kwargs,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(range(len(module.gradients))))
    return trainer


@pytest.fixture(autouse=True)
def _ignore(recwarn):
    """Lightning's hints about workers are not the subject here."""


def test_golden_sequence(tmp_path):
    """PyTorch's own GradScaler example: init 4, interval 2, gradients 1, 1, inf, 1, 1."""
    module, precision = Ramp([1.0, 1.0, float("inf"), 1.0, 1.0]), plugin(initial=4.0, growth_interval=2)
    run(module, precision, tmp_path)
    assert module.seen == [(4.0, -1.0), (8.0, -2.0), (4.0, -2.0), (4.0, -3.0), (8.0, -4.0)]
    scale = {"initial": 4.0, "final": 8.0, "min": 4.0, "max": 8.0}
    assert precision.record() == {"loss_scale": scale, "optimizer_steps": 4, "skipped_steps": 1}


def test_every_overflow_halves_the_scale(tmp_path):
    module, precision = Ramp([float("inf")] * 5), plugin(initial=1024.0)
    run(module, precision, tmp_path)
    assert [scale for scale, _ in module.seen] == [512.0, 256.0, 128.0, 64.0, 32.0]
    assert module.weight.item() == 0.0
    assert precision.record()["skipped_steps"] == 5


def test_gradients_are_clipped_after_unscaling(tmp_path):
    module, precision = Ramp([3.0, 3.0]), plugin(initial=1024.0)
    run(module, precision, tmp_path, gradient_clip_val=1.0)
    assert [weight for _, weight in module.seen] == pytest.approx([-1.0, -2.0], rel=1e-5)


def test_accumulation_steps_once_per_group(tmp_path):
    module, precision = Ramp([1.0, 2.0, 3.0, 4.0]), plugin(initial=8.0)
    run(module, precision, tmp_path, accumulate_grad_batches=2)
    assert module.weight.item() == pytest.approx(-(1 + 2) / 2 - (3 + 4) / 2)
    assert precision.record()["optimizer_steps"] == 2


def test_scaler_state_survives_a_checkpoint():
    first = plugin(initial=8192.0)
    first.scaler.scale(torch.ones(1))  # PyTorch makes the scale when it is first used
    first.steps, first.skipped, first.lowest = 7, 2, 2048.0
    second = plugin(initial=65536.0)
    second.load_state_dict(first.state_dict())
    assert second.scaler.get_scale() == 8192.0
    assert second.record() == first.record()


def test_unscaled_modes_count_steps(tmp_path):
    precision = ModePrecision(MODES["fp32"], CPU, emulate=False, loss_scale=None)
    assert precision.record() == {"loss_scale": None, "optimizer_steps": 0, "skipped_steps": 0}
