"""On a CUDA device: what happens between two epochs does not wait for the device where it need not, and
measures the same.
"""

import time

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import nn

from mpx.data.readers import ResidentReader
from mpx.data.spec import Spec
from mpx.data.splits import Images
from mpx.data.tasks import TrainingLoss, loss_of
from mpx.measure.throughput import Throughput
from mpx.training.module import TrainingModule

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CYCLES = 200_000_000  # of the device's clock, some 0.1 s


@pytest.fixture
def no_waiting():
    """`no_waiting(function)` runs it; RuntimeError where it waits for the device."""

    def run(function):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return run


def busy_seconds():
    """How long CYCLES keep the device busy."""
    for _ in range(3):  # the first ones load the kernel and wake the clock
        torch.cuda.synchronize()
        began = time.perf_counter()
        torch.cuda._sleep(CYCLES)
        torch.cuda.synchronize()
    return time.perf_counter() - began


def test_a_validation_batch_is_queued_without_waiting(no_waiting):
    device = torch.device("cuda")
    split = Images(
        torch.zeros(64, 1, 8, 8, dtype=torch.uint8),
        torch.arange(64) % 4,
        torch.zeros(1, 1, 1),
        torch.ones(1, 1, 1),
    )
    reader = ResidentReader(split, 0, device)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    module = TrainingModule(TrainingLoss(model), Spec("image", (1, 8, 8), 4), None, None, None).to(device)

    def validate():
        for batch in reader.batches(0, list(torch.arange(64).split(24))):
            module.validation_step(batch, 0)

    with torch.no_grad():
        validate()  # loads the kernels
        for meter in module.meters["val_"].values():
            meter.reset()
        no_waiting(validate)
        loss = loss_of(
            module(split.finish(*split.raw(torch.arange(64), None), None)[0].to(device)),
            split.labels.to(device),
        )
    assert module.meters["val_"]["loss"].compute().item() == pytest.approx(loss.item(), rel=1e-6)


class Sleeper(pl.LightningModule):
    """Steps and validation that keep the device busy while the host goes on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch, index):
        torch.cuda._sleep(CYCLES)
        return self.layer(batch[0]).sum()

    def validation_step(self, batch, index):
        torch.cuda._sleep(2 * CYCLES)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0, fused=True)


class Batches:
    def __init__(self, count):
        self.batches = [(torch.zeros(8, 1, device="cuda"), torch.zeros(8, device="cuda"))] * count

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.alone
def test_windows_are_measured_by_the_device_and_nobody_waits_at_their_ends():
    class Host(Callback):
        """When the host is through with validation, in seconds from an epoch's start."""

        def __init__(self):
            self.times = []

        def on_train_epoch_start(self, trainer, pl_module):
            self.began = time.perf_counter()

        def on_validation_end(self, trainer, pl_module):
            self.times.append(time.perf_counter() - self.began)

    throughput, host, busy = Throughput(warmup_steps=2), Host(), busy_seconds()
    trainer = pl.Trainer(
        max_epochs=3, accelerator="gpu", devices=1, callbacks=[throughput, host], logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Sleeper(), Batches(6), Batches(2))
    record = throughput.record(None)
    parts = record["time_to_train_parts_s"]
    assert record["measured_steps"] == 16
    assert record["train_samples_per_s"] == pytest.approx(8 / busy, rel=0.2)
    assert parts["steps"] == pytest.approx(16 * busy, rel=0.2)
    assert parts["validation"] == pytest.approx(3 * 4 * busy, rel=0.2)
    assert sum(parts.values()) == pytest.approx(record["time_to_train_s"], rel=0.02)
    assert min(host.times) < 6 * busy  # validation was queued before the device had done the steps
