"""Loss scaling inside a real Trainer: the golden sequence, skipped steps, and state that survives a
checkpoint.
"""

import pytest
import pytorch_lightning as pl
import torch
from silent import silent_trainer
from torch import nn

from mpx.acceleration.apply import Acceleration
from mpx.precision.modes import MODES
from mpx.precision.plugin import ModePrecision
from mpx.training.ema import Ema
from mpx.training.optimizer import Schedule

CPU, INF = torch.device("cpu"), float("inf")


class Ramp(pl.LightningModule):
    """One weight whose gradient at step i is gradients[i]; SGD, by default with learning rate 1, so the
    weight falls by it.
    """

    acceleration = Acceleration()

    def __init__(self, gradients, fused=False, factor=lambda step: 1.0, decay=None):
        super().__init__()
        self.model = nn.Module()
        self.model.weight = nn.Parameter(torch.zeros(1))
        self.gradients, self.fused, self.seen, self.rates = gradients, fused, [], []
        self.ema = None if decay is None else Ema(decay, self.model)
        self.schedule = Schedule(factor, len(gradients))

    @property
    def plugin(self):
        return self.trainer.precision_plugin

    def training_step(self, batch, index):
        return (self.model.weight * self.gradients[index]).sum()

    def optimizer_step(self, epoch, batch_idx, optimizer, closure):
        from mpx.training.module import TrainingModule

        TrainingModule.take_step(self, optimizer, closure)

    def on_train_batch_end(self, outputs, batch, index):
        scale = getattr(self.trainer.precision_plugin, "loss_scale", None)
        self.seen.append((scale.scale.item() if scale else None, self.model.weight.item()))
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0, fused=self.fused)


def pairs(x, batch_size):
    """Batches (x, y), as mpx's own loaders make them."""
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, torch.zeros(len(x))), batch_size=batch_size
    )


def plugin(mode="amp", max_skips=None, **scale):
    return ModePrecision(MODES[mode], CPU, emulate=True, loss_scale=scale, max_skips=max_skips)


def trainer(precision, tmp_path, **kwargs):
    return silent_trainer(plugins=[precision], default_root_dir=tmp_path, **kwargs)


def run(module, precision, tmp_path, **kwargs):
    made = trainer(precision, tmp_path, **kwargs)
    made.fit(module, torch.utils.data.DataLoader(range(len(module.gradients))))
    return made


@pytest.fixture(autouse=True)
def _ignore(recwarn):
    """Lightning's hints about workers are not the subject here."""


@pytest.mark.parametrize("fused", [True, False])
def test_golden_sequence(tmp_path, fused):
    """PyTorch's own GradScaler example: init 4, interval 2, gradients 1, 1, inf, 1, 1."""
    module, precision = Ramp([1.0, 1.0, INF, 1.0, 1.0], fused), plugin(initial=4.0, growth_interval=2)
    run(module, precision, tmp_path)
    assert module.seen == [(4.0, -1.0), (8.0, -2.0), (4.0, -2.0), (4.0, -3.0), (8.0, -4.0)]
    scale = {"initial": 4.0, "final": 8.0, "min": 4.0, "max": 8.0, "dynamic": True}
    assert precision.record() == {"loss_scale": scale, "optimizer_steps": 4, "skipped_steps": 1}


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_skipped_step_moves_neither_schedule_nor_average(tmp_path, at):
    """The rates used are those of an uncut sequence with one of them used twice."""
    gradients = [1.0] * 5
    gradients[at] = INF
    module = Ramp(gradients, fused=True, factor=lambda step: 1 / (1 + step), decay=0.5)
    run(module, plugin(initial=4.0), tmp_path, callbacks=[module.ema])
    expected, position, weight, average = [], 0, 0.0, 0.0
    for gradient in gradients:
        expected.append(1 / (1 + position))
        if gradient == 1.0:
            weight -= expected[-1]
            decay = min(0.5, (1 + position) / (10 + position))
            average = decay * average + (1 - decay) * weight
            position += 1
    assert module.rates == pytest.approx(expected)
    assert int(module.schedule.position) == 4
    assert module.model.weight.item() == pytest.approx(weight)
    assert module.ema.averages["weight"].item() == pytest.approx(average)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("algorithm", "limit"), [("norm", 1.0), ("value", 1.0)])
def test_gradients_are_clipped_after_unscaling(tmp_path, fused, algorithm, limit):
    module, precision = Ramp([3.0, 3.0], fused), plugin(initial=1024.0)
    run(module, precision, tmp_path, gradient_clip_val=limit, gradient_clip_algorithm=algorithm)
    assert [weight for _, weight in module.seen] == pytest.approx([-1.0, -2.0], rel=1e-5)


def test_hooks_see_unscaled_gradients(tmp_path):
    """After Lightning's test_amp_gradient_unscale: what clips, logs or masks gradients sees them without the
    scale, accumulated or not.
    """
    seen = []
    module, precision = Ramp([1.0, 3.0, 1.0, 3.0]), plugin(initial=1024.0)
    module.on_before_optimizer_step = lambda optimizer: seen.append(module.model.weight.grad.item())
    run(module, precision, tmp_path, accumulate_grad_batches=2)
    assert seen == [2.0, 2.0]
    assert precision.record()["optimizer_steps"] == 2


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.dtypes = {}

    def training_step(self, batch, index):
        x, _ = batch
        hidden = self.norm(self.conv(x))
        out = self.fc(hidden.relu().mean((2, 3)))
        weights = {"conv": self.conv.weight, "norm": self.norm.weight, "input": x, "out": out}
        self.dtypes = {name: str(value.dtype).removeprefix("torch.") for name, value in weights.items()}
        return out.float().square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, fused=True)


@pytest.mark.parametrize(
    ("mode", "conv", "norm", "out", "stored"),
    [
        ("o0", "float32", "float32", "float32", "float32"),
        ("o1", "float32", "float32", "float16", "float32"),
        ("o2", "float16", "float32", "float16", "float32"),
        ("o3", "float16", "float16", "float16", "float16"),
        ("fp16_true", "float16", "float16", "float16", "float16"),
        ("bf16_true", "bfloat16", "bfloat16", "bfloat16", "bfloat16"),
    ],
)
def test_what_apexs_levels_mean(tmp_path, mode, conv, norm, out, stored):
    torch.manual_seed(0)
    module = Net()
    before = module.conv.weight.detach().clone()
    precision = ModePrecision(MODES[mode], CPU, emulate=mode not in ("o0", "bf16_true"), loss_scale={})
    trainer(precision, tmp_path).fit(module, pairs(torch.randn(4, 3, 6, 6), 2))
    assert (module.dtypes["conv"], module.dtypes["norm"], module.dtypes["out"]) == (conv, norm, out)
    assert str(module.conv.weight.dtype) == f"torch.{stored}"
    assert not torch.equal(before, module.conv.weight.float())
    if mode == "o2":
        # the masters are finer than FP16
        assert not torch.equal(module.conv.weight, module.conv.weight.half().float())


class Logits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(128, 4))

    def predict_step(self, batch, index):
        return self.model(batch[0])


@pytest.mark.parametrize("mode", ["amp", "o2", "o3"])
def test_evaluation_is_in_the_format_too(tmp_path, mode):
    """A Trainer evaluates in inference mode."""
    torch.manual_seed(0)
    module, images = Logits(), torch.randn(4, 3, 6, 6)
    with torch.no_grad():
        in_fp32 = module.model(images)
    (logits,) = trainer(plugin(mode), tmp_path).predict(module, pairs(images, 4))
    assert torch.equal(logits.float(), logits.half().float())
    assert not torch.equal(logits.float(), in_fp32.half().float())  # not only the result is rounded
    assert torch.allclose(logits.float(), in_fp32, atol=1e-2)
