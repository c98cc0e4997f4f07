"""Throughput against a known truth: a step that sleeps, and evaluation that sleeps much longer."""

from dataclasses import dataclass

import pytest
import pytorch_lightning as pl
import torch
from silent import silent_trainer
from torch.nn.utils.rnn import pack_sequence

from mpx.measure.batches import samples_in
from mpx.measure.first_step import FirstStep, WatchFirstStep
from mpx.measure.flops import model_flops
from mpx.measure.throughput import Throughput
from mpx.precision.audit import Audit
from mpx.precision.modes import MODES

STEP_S, WAIT_S, BATCH = 0.02, 0.01, 8


class Sleeper(pl.LightningModule):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.layer = torch.nn.Linear(1, 1)
        self.steps = 0

    def training_step(self, batch, index):
        self.steps += 1
        self.clock.sleep(STEP_S if self.steps > 2 else 0.3)  # the first two are slow, as compilation is
        return self.layer(batch[0]).sum()

    def validation_step(self, batch, index):
        self.clock.sleep(0.2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class SlowLoader:
    """Batches of 8 that take 10 ms each to come."""

    def __init__(self, clock, batches):
        self.clock, self.batches, self.waits, self.mark = clock, batches, [], clock.perf_counter

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            asked = self.mark()
            self.clock.sleep(WAIT_S)
            self.waits.append((asked, self.mark()))
            yield torch.zeros(BATCH, 1), torch.zeros(BATCH)

    def time_waits(self, mark):
        self.mark = mark

    def take_waits(self):
        waits, self.waits = self.waits, []
        return waits


def fit(clock, *callbacks, epochs=2, **kwargs):
    trainer = silent_trainer(max_epochs=epochs, callbacks=list(callbacks), num_sanity_val_steps=0, **kwargs)
    trainer.fit(Sleeper(clock), SlowLoader(clock, 10), SlowLoader(clock, 1))
    return trainer


@pytest.fixture
def measured(clock):
    throughput = Throughput(warmup_steps=2)
    fit(clock, throughput)
    return throughput


def test_rate_and_parts_of_the_time(measured):
    record = measured.record(2e9)
    assert record["measured_steps"] == 18
    assert record["train_samples_per_s"] == pytest.approx(BATCH / (STEP_S + WAIT_S))
    assert record["model_tflops_per_s"] == pytest.approx(record["train_samples_per_s"] * 2e9 / 1e12)
    assert record["step_ms_p50"] == pytest.approx((STEP_S + WAIT_S) * 1e3)
    assert record["data_wait_fraction"] == pytest.approx(WAIT_S / (STEP_S + WAIT_S))
    parts = record["time_to_train_parts_s"]
    assert parts["warmup"] == pytest.approx(2 * (0.3 + WAIT_S))
    assert parts["steps"] == pytest.approx(18 * (STEP_S + WAIT_S))
    assert parts["validation"] == pytest.approx(2 * (0.2 + WAIT_S))
    assert sum(parts.values()) == pytest.approx(measured.time_to_train_s)


def test_what_other_callbacks_do_after_the_last_step_is_no_step(clock):
    """The part `steps` is the windows, and a window ends with its last step."""

    class Slow(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.is_last_batch:
                clock.sleep(0.4)

    throughput = Throughput(warmup_steps=2)
    fit(clock, throughput, Slow())
    parts = throughput.record(None)["time_to_train_parts_s"]
    assert parts["steps"] == pytest.approx(throughput.seconds) == pytest.approx(18 * (STEP_S + WAIT_S))
    assert sum(parts.values()) == pytest.approx(throughput.time_to_train_s)


def test_steps_after_a_validation_within_an_epoch_are_timed(clock):
    """Validations follow the steps 2, 4, 6, 8 and 10, of which the first 3 warm up. Of the rest only steps 4,
    6, 8 and 10 have their wait for the batch in the window.
    """
    throughput = Throughput(warmup_steps=3)
    fit(clock, throughput, epochs=1, val_check_interval=2)
    assert throughput.measured_steps == len(throughput.step_ms) == 4
    assert throughput.samples_per_s == pytest.approx(BATCH / (STEP_S + WAIT_S))
    assert throughput.record(None)["data_wait_fraction"] == pytest.approx(WAIT_S / (STEP_S + WAIT_S))
    parts = throughput.parts
    assert parts["warmup"] == pytest.approx(2 * (0.3 + WAIT_S) + STEP_S)
    assert parts["steps"] == pytest.approx(7 * STEP_S + 4 * WAIT_S)
    assert parts["validation"] == pytest.approx(5 * (0.2 + WAIT_S))
    assert parts["other"] == pytest.approx(4 * WAIT_S)


def test_a_second_training_measures_its_own_steps(clock):
    """As in a loop over seeds with one list of callbacks. A Trainer that fits again goes on, so its time to
    train is that of both.
    """
    throughput = Throughput(warmup_steps=2)
    fit(clock, throughput)
    once = throughput.time_to_train_s
    clock.sleep(100.0)
    trainer = fit(clock, throughput)
    assert throughput.measured_steps == 18
    assert throughput.samples_per_s == pytest.approx(BATCH / (STEP_S + WAIT_S))
    assert throughput.time_to_train_s == pytest.approx(once)
    clock.sleep(100.0)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(trainer.lightning_module, SlowLoader(clock, 10), SlowLoader(clock, 1))
    assert throughput.measured_steps == 8
    assert throughput.samples_per_s == pytest.approx(BATCH / (STEP_S + WAIT_S))
    assert throughput.time_to_train_s == pytest.approx(once + 10 * (STEP_S + WAIT_S) + 0.2 + WAIT_S)


@pytest.mark.parametrize("at", [5, 10])
def test_the_time_before_another_warm_up_is_in_the_part_where_it_was_spent(clock, at):
    """Within an epoch, and at the beginning of the second one, after a validation."""
    throughput = Throughput(warmup_steps=2)

    class Prune(pl.callbacks.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, index):
            if trainer.global_step == at:
                clock.sleep(3)
                throughput.restart_warmup(trainer)

    fit(clock, throughput, Prune())
    parts = throughput.record(None)["time_to_train_parts_s"]
    assert parts["warmup"] == pytest.approx(2 * (0.3 + WAIT_S) + 2 * STEP_S + 1 * WAIT_S)
    assert parts["steps"] == pytest.approx(16 * (STEP_S + WAIT_S))
    assert parts["other"] == pytest.approx(3 + WAIT_S)
    assert sum(parts.values()) == pytest.approx(throughput.time_to_train_s)


def test_steps_that_became_others_are_forgotten(clock):
    """The slow second step is in the window that is forgotten. The time to train is that of all steps."""
    throughput = Throughput(warmup_steps=1)

    class Compile(pl.callbacks.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, index):
            if trainer.global_step == 5:
                throughput.start_over()

    fit(clock, throughput, Compile(), epochs=1)
    assert throughput.measured_steps == len(throughput.step_ms) == 10 - 5 - 1
    assert throughput.samples_per_s == pytest.approx(BATCH / (STEP_S + WAIT_S))
    assert throughput.record(None)["data_wait_fraction"] == pytest.approx(WAIT_S / (STEP_S + WAIT_S))
    assert throughput.time_to_train_s == pytest.approx(2 * 0.3 + 8 * STEP_S + 10 * WAIT_S + 0.2 + WAIT_S)


def test_a_run_within_its_warmup_has_no_rate_and_says_why(clock):
    throughput = Throughput(warmup_steps=100)
    fit(clock, throughput, epochs=1)
    record = throughput.record(1e9)
    assert record["train_samples_per_s"] is None
    assert record["model_tflops_per_s"] is None
    assert "100 warm-up steps" in record["train_samples_per_s_reason"]


def test_the_first_step_is_the_only_one_that_is_watched(clock):
    audit = Audit(MODES["fp32"], emulate=False, flops_of=model_flops)
    fit(clock, WatchFirstStep(first := FirstStep(audit)), epochs=1)
    assert (first.samples, first.unlike) == (BATCH, None)
    assert first.flops_per_sample == 2 * 2  # of one weight, in the forward pass and for its gradient
    assert audit.observed() == {"matmul": {"fp32": 2}}


def test_a_run_records_where_its_time_went(train):
    ran = train("model=mlp", "trainer.max_epochs=3", "trainer.limit_train_batches=8")
    speed = ran.record["speed"]
    parts = speed["time_to_train_parts_s"]
    assert list(parts) == ["warmup", "steps", "validation", "other", "end"]
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(speed["time_to_train_s"], rel=0.02)
    assert speed["measured_steps"] == 14
    assert 14 * 64 / speed["train_samples_per_s"] < parts["steps"] * 1.001


IMAGES = [torch.zeros(3, 8, 8)] * 5
BOXES = [{"boxes": torch.zeros(n, 4)} for n in (2, 5, 1, 3, 2)]
PACKED = pack_sequence([torch.zeros(n, 4) for n in (7, 2, 5)], enforce_sorted=False)


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


BATCHES = {
    "a tensor": (torch.zeros(5, 2), 5),
    "a pair": ([torch.zeros(5, 2), torch.zeros(5)], 5),
    "a dataclass": (Pair(torch.zeros(5, 2), torch.zeros(5)), 5),
    "a dictionary": ({"meta": ["text"] * 9, "x": torch.zeros(5, 2), "more": {"y": torch.zeros(5)}}, 5),
    "two views": (([torch.zeros(5, 2), torch.zeros(5, 2)], torch.zeros(5)), 5),
    "images with lists of boxes": ((IMAGES, BOXES), None),
    "packed texts with labels": ((PACKED, torch.zeros(3)), None),
    "time before samples": ((torch.zeros(9, 5), torch.zeros(8, 5)), None),
}


@pytest.mark.parametrize("name", BATCHES)
def test_samples_of_a_batch(name):
    batch, samples = BATCHES[name]
    assert samples_in(batch) == samples


def test_a_throughput_is_unknown_where_one_batch_cannot_be_counted(clock):
    counts = iter([None] + [BATCH] * 9)
    throughput = Throughput(warmup_steps=2, samples=lambda batch: next(counts))
    fit(clock, throughput, epochs=1)
    record = throughput.record(1e9)
    assert (record["measured_steps"], record["train_samples_per_s"], record["model_tflops_per_s"]) == (
        8,
        None,
        None,
    )
    assert record["train_samples_per_s_reason"].endswith("mpx.Throughput(samples=FUNCTION) counts them")
