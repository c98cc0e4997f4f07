"""Runs whose steps are repeated from a recording end with the weights of plain ones; the recording is the
stand-in of again.py.

tests/gpu/test_gpu_speed.py does the same with real CUDA graphs.
"""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from again import Again, of
from tape import Tape
from torch import nn

from mpx.acceleration.apply import Acceleration
from mpx.acceleration.graph import WARMUP, Repeatable, StepGraph
from mpx.errors import UserError
from mpx.training.module import TrainingModule

WORDS = "model=mlp trainer.max_epochs=2 trainer.progress=off numerics.every=7 trainer.log_every_n_steps=1"
STEPS = WORDS.split()
OVERFLOWS = "precision.loss_scale.initial=1e12 precision.loss_scale.ceiling=1e13"


@pytest.fixture
def graphed(monkeypatch):
    """From now on runs repeat their steps."""

    def switch(again=None):
        def apply(choice, model, loss, *, ranks, version, searched):
            recorder = again or Again()
            recorder.graph = StepGraph(model, version, required=False, tell=print, recorder=recorder)
            return Acceleration(graph=recorder.graph)

        monkeypatch.setattr("mpx.training.assemble.apply", apply)

    return switch


@pytest.mark.parametrize(
    "choice",
    [
        "precision=fp32",
        "precision=amp trainer.gradient_clip_val=0.5 trainer.ema_decay=0.9 schedule.warmup=0.2",
        f"precision=amp {OVERFLOWS} optimizer=adamw",
        "precision=o2 sparsity=2of4 sparsity.shape_rule=any",
        "sparsity=2of4 sparsity.recipe=gradual sparsity.start=0.2 sparsity.end=0.4 optimizer=adamw",
    ],
)
def test_same_weights(train, graphed, choice):
    words = [*STEPS, *choice.split()]
    plain = train(*words, "study=plain")
    assert plain.code == 0, plain.err
    graphed()
    again = train(*words, "study=graph")
    assert again.code == 0, again.err
    (expected, without), (found, record) = of(again, "plain"), of(again, "graph")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert record["metrics"] == without["metrics"]
    assert record["precision"]["skipped_steps"] == without["precision"]["skipped_steps"]
    assert record["precision"]["optimizer_steps"] == without["precision"]["optimizer_steps"]
    graph = record["speed"]["chosen"]["graph"]
    assert graph["replayed_steps"] > 20
    assert graph["given_up"] is None
    assert graph["recorded"] == (1 if "sparsity=2of4" not in choice else graph["recorded"])


FP16 = f"precision=amp {OVERFLOWS} precision.loss_scale.growth_interval=3"
SR_STE = "sparsity=2of4 sparsity.recipe=sr_ste sparsity.decay=0.01 schedule=constant schedule.warmup=0"


@pytest.mark.parametrize(
    "choice",
    [
        "optimizer=sgd sparsity.start=0 trainer.ema_decay=0.9 trainer.gradient_clip_val=0.5",
        "optimizer=adamw optimizer.lr=1e-3 sparsity.start=0.3 trainer.ema_decay=0.9",
        f"{FP16} optimizer=sgd sparsity.start=0.3",
        f"{FP16} optimizer=adamw optimizer.lr=1e-3 sparsity.start=0",
    ],
)
def test_masks_that_move_between_replays(train, graphed, choice):
    """sr_ste chooses masks after each replay, whose hooks are not called, and which reads the remembered
    values where they were.
    """
    words = [*STEPS, *choice.split(), *SR_STE.split()]
    plain = train(*words, "study=plain")
    assert plain.code == 0, plain.err
    graphed(Tape())
    again = train(*words, "study=graph")
    assert again.code == 0, again.err
    (expected, without), (found, record) = of(again, "plain"), of(again, "graph")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert record["metrics"] == without["metrics"]
    assert record["precision"]["skipped_steps"] == without["precision"]["skipped_steps"]
    assert ("precision=amp" in choice) == (record["precision"]["skipped_steps"] > 8)
    graph = record["speed"]["chosen"]["graph"]
    assert (graph["recorded"], graph["given_up"]) == (1 if "sparsity.start=0" in words else 2, None)
    assert graph["replayed_steps"] > 20


@pytest.fixture
def reviews(tmp_path):
    """A file of texts of 1 to 40 words, of which the longest come last."""
    rows = [f"{'good ' * (i % 40)}{'fine' if i % 2 else 'dull'},{i % 2}\n" for i in range(400)]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(rows))
    data = ["data=text_csv", f"data.path={tmp_path}/reviews.csv", f"data.cache={tmp_path}/cache"]
    return [*data, "data.seq_len=64", "data.batch_size=8", "data.lengths=[16,32,64]"]


@pytest.mark.parametrize("recorder", [Again, Tape])
def test_each_length_has_a_recording(train, graphed, reviews, recorder):
    choice = [*STEPS, *reviews, "schedule=constant", "schedule.warmup=0"]
    plain = train(*choice, "study=plain")
    assert plain.code == 0, plain.err
    graphed(recorder())
    again = train(*choice, "study=graph")
    assert again.code == 0, again.err
    (expected, _), (weights, record) = of(again, "plain"), of(again, "graph")
    assert all(torch.equal(expected[name], weights[name]) for name in expected)
    graph = record["speed"]["chosen"]["graph"]
    assert (graph["recorded"], graph["given_up"]) == (3, None)
    assert graph["replayed_steps"] > 30


def test_a_length_that_cannot_be_recorded_runs_as_usual(train, graphed, reviews):
    class RefusesTheSecond(Again):
        recorded = 0

        def record(self, step, beside=None):
            self.recorded += 1
            if self.recorded == 2:
                raise RuntimeError("operation not permitted")
            return super().record(step)

    graphed(RefusesTheSecond())
    ran = train(*STEPS, *reviews)
    assert ran.code == 0, ran.err
    assert ran.out.count("speed: no CUDA graph for batches of 8×") == 1
    graph = ran.record["speed"]["chosen"]["graph"]
    assert (graph["recorded"], graph["given_up"]) == (2, None)


def test_everything_that_lasts_is_written_in_place(train, graphed, monkeypatch):
    """What a replay reads and writes must lie where it lay when it was recorded."""
    seen = []
    step = TrainingModule.take_step

    def watched(self, optimizer, closure):
        step(self, optimizer, closure)
        precision, inner = self.trainer.precision_plugin, optimizer.optimizer
        parts = [vars(self.schedule), self.ema.averages, self.model.state_dict(), vars(precision.loss_scale)]
        lasting = [value for part in (*parts, *inner.state.values()) for value in part.values()]
        seen.append([value.data_ptr() for value in lasting if isinstance(value, torch.Tensor)])

    monkeypatch.setattr(TrainingModule, "take_step", watched)
    ran = train(*STEPS, "precision=amp", "trainer.ema_decay=0.9", "optimizer=adamw", "trainer.max_epochs=1")
    assert ran.code == 0, ran.err
    assert len(seen) == 20
    assert all(pointers == seen[-1] for pointers in seen[1:])


def test_what_cannot_be_recorded_trains_as_usual(train, graphed, capsys):
    class Refuses(Again):
        def record(self, step, beside=None):
            raise RuntimeError("operation not permitted when\n stream is capturing")

    graphed(Refuses())
    ran = train(*STEPS, "trainer.max_epochs=1")
    assert ran.code == 0, ran.err
    assert "speed: no CUDA graphs after all (operation not permitted when stream is capturing)" in ran.out
    assert ran.record["precision"]["optimizer_steps"] == 20
    assert ran.record["speed"]["chosen"]["graph"] == {
        "recorded": 0,
        "replayed_steps": 0,
        "given_up": "operation not permitted when stream is capturing",
    }


def test_asked_for_by_hand_it_must_work():
    net = torch.nn.Linear(2, 2)
    graph = StepGraph(net, lambda: None, required=True, tell=print, recorder=Again())
    batch = torch.ones(1, 2), torch.ones(1)
    for _ in range(WARMUP - 1):
        graph.run(batch, lambda: torch.rand(()), None, watched=False)
    with pytest.raises(
        UserError,
        match=r"trainer.cuda_graphs=true is not possible: the model draws random "
        r"numbers on the CPU",
    ):
        graph.run(batch, lambda: torch.rand(()), None, watched=False)


def test_recorded_anew_when_masks_are_others():
    token, recorder = [object()], Again()
    graph = StepGraph(torch.nn.Linear(2, 2), lambda: token[0], required=True, tell=print, recorder=recorder)
    recorder.graph = graph

    class Closure:
        def __call__(self):
            loss = graph.batch(batch)[0].sum()
            self._result = type("Result", (), {"loss": loss, "closure_loss": loss})

    losses = []
    for number in range(WARMUP + 4):
        batch, closure = (torch.full((2, 2), float(number)), torch.ones(2)), Closure()
        if number == WARMUP + 2:
            token[0] = object()
        graph.run(batch, partial(lambda closure: closure(), closure), closure, watched=False)
        losses.append(closure._result.loss.item())
    assert losses == [4.0 * number for number in range(WARMUP + 4)]
    assert (graph.recorded, graph.replayed) == (2, 4)


class Habitual(nn.Module):
    def __init__(self, habit):
        super().__init__()
        self.layer, self.norm, self.habit, self.count = nn.Linear(4, 4), nn.BatchNorm1d(4), habit, 0
        self.register_buffer("average", torch.zeros(4))
        self.best = math.nan

    def forward(self, x):
        self.habit(self)
        return self.norm(self.layer(x))


def replace(net):
    net.average = net.average + 1


def count(net):
    net.count += 1


@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        (lambda net: net.average.add_(1), None),
        (lambda net: random.random(), "the model draws random numbers on the CPU"),
        (lambda net: np.random.rand(), "the model draws random numbers on the CPU"),
        (lambda net: torch.rand(()), "the model draws random numbers on the CPU"),
        (replace, "the model changes its own attribute .average in Python"),
        (count, "the model changes its own attribute .count in Python"),
    ],
)
def test_a_step_that_does_more_than_launch_kernels_is_seen(habit, reason):
    net = Habitual(habit)
    with Repeatable(net) as seen:
        net(torch.ones(2, 4)).sum().backward()
    assert seen.reason == reason
