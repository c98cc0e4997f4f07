"""profile=true on runs whose bottleneck is known, and what it leaves alone."""

import csv
import time
from itertools import count, cycle

import pytest
import pytorch_lightning as pl
import torch
from few_steps import FEW_STEPS
from silent import silent_trainer

from mpx.acceleration.apply import Acceleration
from mpx.measure.profile import Profile
from mpx.measure.profile_plan import MIN_BEFORE, PROFILE_STEPS, TIMED, batches_left
from mpx.measure.steady import SteadySteps
from mpx.measure.throughput import Throughput
from mpx.measure.trace import read_trace
from mpx.precision.modes import MODES, cpu_has_bf16
from mpx.render.profile import report_profile

SLEEP_S = 0.02


class Step(pl.LightningModule):
    """A step that does `work` on a parameter."""

    def __init__(self, work):
        super().__init__()
        self.weight, self.work = torch.nn.Parameter(torch.randn(256, 256) / 16), work

    def training_step(self, batch, index):
        return self.work(self.weight, batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Loader:
    def __init__(self, batches, sleep_s, rows):
        self.batches, self.sleep_s, self.rows, self.waits = batches, sleep_s, rows, []

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            asked = self.mark()
            time.sleep(self.sleep_s() if callable(self.sleep_s) else self.sleep_s)
            batch = torch.randn(self.rows, 256), torch.zeros(self.rows)
            self.waits.append((asked, self.mark()))
            yield batch

    def time_waits(self, mark):
        self.mark = mark

    def take_waits(self):
        waits, self.waits = self.waits, []
        return waits


def products(weight, x):
    for _ in range(20):
        x = x @ weight
    return x.sum()


def elementwise(weight, x):
    x = x + weight[0]
    for _ in range(20):
        x = (x * 1.01 + 0.01).relu()
    return x.sum()


def rests(weight, x):
    time.sleep(SLEEP_S)
    return weight.sum()


def fit(folder, work, batches=40, sleep_s=0.0, rows=2048, epochs=1):
    throughput = Throughput(warmup_steps=2)
    looked = profile(throughput, folder)
    train_with([throughput, looked], work, Loader(batches, sleep_s, rows), max_epochs=epochs)
    return looked.record(), throughput


def profile(throughput, folder):
    return Profile(
        throughput, MODES["fp32"], folder, emulated=False, sampled=200, output_dir=folder, acceleration=Acceleration(), against={}
    )


def train_with(callbacks, work, loader, **limits):
    trainer = silent_trainer(**limits, callbacks=callbacks, num_sanity_val_steps=0)
    trainer.fit(Step(work), loader)
    return trainer


@pytest.mark.parametrize(
    ("work", "sleep_s", "rows", "bound"),
    [
        (products, 0.0, 512, "arithmetic"),
        (elementwise, 0.0, 4096, "memory"),
        (rests, 0.0, 8, "launch overhead"),
        (products, 0.05, 64, "input"),
    ],
)
def test_known_bottlenecks(tmp_path, work, sleep_s, rows, bound):
    for _ in range(6):  # others may use this machine's cores in between
        found, throughput = fit(tmp_path, work, sleep_s=sleep_s, rows=rows)
        if found["bound"] == bound:
            break
    assert found["bound"] == bound, found["sentence"]
    assert throughput.measured_steps == 40 - max(2, MIN_BEFORE) - PROFILE_STEPS + (MIN_BEFORE - 2)
    assert found["idle_fraction"] == pytest.approx(1 - found["busy_ms"] / found["step_ms"]) or found["idle_fraction"] == 0
    assert found["launches"] is None
    assert found["launches_reason"]
    assert any(event.get("name") == "aten::sum" for event in read_trace(tmp_path / "trace.json.gz"))
    if bound == "launch overhead":
        assert found["step_ms"] >= SLEEP_S * 1e3
    if bound == "input":
        assert 45 <= found["waited_ms"] <= found["step_ms"]


def test_a_step_that_others_held_up_does_not_count(tmp_path):
    steps = count()

    def held_up_once(weight, x):
        if next(steps) == MIN_BEFORE + 5:
            time.sleep(2)
        return products(weight, x)

    found, _ = fit(tmp_path, held_up_once, rows=512)
    assert found["step_ms"] < 2e3 / TIMED


def test_batches_that_come_in_bursts_are_waited_for(tmp_path):
    """As four workers deliver them: three out of four are there already."""
    sleeps = cycle([0.0, 0.0, 0.0, 0.2])
    found, _ = fit(tmp_path, products, sleep_s=lambda: next(sleeps), rows=64)
    assert found["bound"] == "input", found["sentence"]
    assert 0.2e3 * 2 / TIMED <= found["waited_ms"] <= found["step_ms"]


@pytest.mark.parametrize("alone", [True, False])
def test_over_short_epochs(tmp_path, monkeypatch, alone):
    """No epoch has room for it all: the timing continues in the next one, and the trace takes what an epoch has. alone: as on a CPU, each
    step by itself; else, as on a GPU, those of an epoch together."""
    begin = SteadySteps.begin

    def as_there(steady):
        steady.each_alone = alone
        begin(steady)

    monkeypatch.setattr(SteadySteps, "begin", as_there)
    found, _ = fit(tmp_path, rests, batches=4, rows=8, epochs=10)
    assert (found["timed_steps"], found["traced_steps"]) == (TIMED, 3)
    assert SLEEP_S * 1e3 <= found["step_ms"] < 10 * SLEEP_S * 1e3


@pytest.mark.parametrize(
    ("batches", "epochs", "words"),
    [
        (10, 1, "the run ended 10 batches after its start"),
        (MIN_BEFORE + PROFILE_STEPS - 1, 1, f"a profile needs {PROFILE_STEPS} after the first {MIN_BEFORE} (trainer.warmup_steps)"),
        (3, 7, "train longer"),
        (1, 60, "an epoch has 1 batch, and a profile needs 2 in one; lower data.batch_size, or raise trainer.limit_train_batches"),
    ],
)
def test_a_run_that_is_too_short_says_so_and_keeps_its_throughput(tmp_path, batches, epochs, words, capsys):
    found, throughput = fit(tmp_path, products, batches=batches, rows=8, epochs=epochs)
    assert found["bound"] is None
    assert words in found["reason"]
    assert throughput.measured_steps == batches * epochs - 2
    report_profile(found, tmp_path)
    assert capsys.readouterr().out == f"profile: nothing to show, since {found['reason']}.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("batches", "limits"),
    [
        (26, {"max_epochs": 1, "accumulate_grad_batches": 8}),
        (40, {"max_epochs": 9, "max_steps": 3, "accumulate_grad_batches": 8}),
        (12, {"max_epochs": 9, "max_steps": 6, "accumulate_grad_batches": 5}),
        *((batches, {"max_epochs": epochs}) for batches, epochs in ((2, 10), (2, 11), (3, 8), (4, 6), (5, 5), (7, 4), (9, 3))),
    ],
)
def test_what_is_begun_comes_to_its_end(tmp_path, batches, limits):
    """Else neither the profile nor the throughput would have these steps."""
    throughput = Throughput(warmup_steps=2)
    looked = profile(throughput, tmp_path)
    trainer = train_with([throughput, looked], rests, Loader(batches, 0.0, 8), **limits)
    taken = trainer.fit_loop.epoch_loop.total_batch_idx + 1
    begun = throughput.measured_steps < taken - 2
    assert begun is (looked.record()["bound"] is not None)


@pytest.mark.parametrize("accumulated", [1, 3, 4, 7])
@pytest.mark.parametrize("limits", [{"max_epochs": 3}, {"max_epochs": 9, "max_steps": 5}, {"max_epochs": 2, "max_steps": 8}])
def test_batches_left(limits, accumulated):
    class Counts(pl.Callback):
        def __init__(self):
            self.left = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.left.append(batches_left(trainer, batch_idx + 1))

    counts = Counts()
    train_with(
        [Throughput(warmup_steps=0), counts],
        lambda weight, x: weight.sum(),
        Loader(11, 0.0, 8),
        accumulate_grad_batches=accumulated,
        **limits,
    )
    assert counts.left == list(range(len(counts.left)))[::-1]


def test_where_all_steps_were_looked_into_the_missing_throughput_says_so(tmp_path):
    found, throughput = fit(tmp_path, products, batches=MIN_BEFORE + PROFILE_STEPS, rows=8)
    assert found["bound"] is not None
    assert throughput.measured_steps == MIN_BEFORE - 2
    throughput = Throughput(warmup_steps=MIN_BEFORE)
    train_with([throughput, profile(throughput, tmp_path)], products, Loader(MIN_BEFORE + PROFILE_STEPS, 0.0, 8))
    assert "that profile=true looked into" in throughput.record(None)["train_samples_per_s_reason"]


@pytest.mark.slow
def test_a_compiled_step_on_a_cpu_is_not_judged_by_the_operations_of_a_plain_one(train, monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **kwargs: compiler(function, **kwargs | {"backend": "eager"}))  # takes no time
    ran = train("profile=true", "trainer.compile=default", "model=mlp", "trainer.max_epochs=3", "data.batch_size=64")
    assert ran.code == 0, ran.err
    found = ran.record["profile"]
    assert found["compiled"]
    assert found["steps"] == "a plain step: a compiled one does not tell its operations on a CPU"
    assert found["idle_fraction"] == pytest.approx(found["waited_ms"] / found["step_ms"])
    assert "trainer.compile" not in found["sentence"]


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(["precision=amp_bf16"], marks=pytest.mark.slow),
        ["precision=amp", "sparsity=2of4", "sparsity.start_step=12"],  # in the middle of the timing, which begins again
        pytest.param(["data.loader=workers", "data.workers=0"], marks=pytest.mark.slow),
    ],
)
def test_a_whole_run(train, choice):
    few = ["trainer.max_epochs=1", "data.batch_size=32", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
    ran = train("profile=true", "trainer.warmup_steps=4", *few, *choice)
    assert ran.code == 0, ran.err
    found = ran.record["profile"]
    emulates = "precision=amp" in choice or ("precision=amp_bf16" in choice and not cpu_has_bf16())
    native = ("arithmetic", "memory", "launch overhead", "input")
    assert found["bound"] in (("emulation",) if emulates else native)
    assert found["sentence"] in " ".join(ran.out.split())
    assert found["steps"] == "5 plain steps"
    assert found["loader"] == ("workers" if "data.workers=0" in choice else "resident")
    assert (found["cpu_busy"] is None) is ("data.workers=0" in choice)
    assert found["limits"] is None
    assert found["limits_reason"]
    assert sum(row["share"] for row in found["operations"]) == pytest.approx(1)
    forward = next(row for row in found["operations"] if row["operation"] == "convolution")
    assert forward["format"] == ("bf16" if "precision=amp_bf16" in choice else "fp16" if "precision=amp" in choice else "fp32")
    assert forward["gflop"] > 0
    assert forward["roofline_reason"] == found["limits_reason"]
    assert ran.record["speed"]["train_samples_per_s"] > 0
    with open(ran.folder / "profile.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["operation"] for row in rows] == [row["operation"] for row in found["operations"]]
    assert (ran.folder / "trace.json.gz").exists()
    assert "setting" not in found
    assert "profile" not in ran.folder.parent.name


@pytest.mark.parametrize(("warmup", "stepped"), [(6, True), (7, False)])
def test_a_batch_of_several_may_lack_the_optimizers_step(train, warmup, stepped):
    words = ["model=mlp", "trainer.max_epochs=1", "data.batch_size=32", "trainer.accumulate_grad_batches=2", *FEW_STEPS[2:4]]
    found = train("profile=true", f"trainer.warmup_steps={warmup}", *words).record["profile"]
    assert any(row["operation"] == "_fused_adamw_" for row in found["operations"]) is stepped
    with_it = f"{'with' if stepped else 'without'} the optimizer's step, which follows every 2 batches"
    assert found["steps"] == f"5 plain steps; the operations are of a batch {with_it}"


def test_without_it_nothing_is_recorded_or_written(train):
    ran = train(*FEW_STEPS)
    assert "profile" not in ran.record
    assert not (ran.folder / "trace.json.gz").exists()
