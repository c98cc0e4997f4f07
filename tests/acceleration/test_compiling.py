"""When the steps of a run are compiled, and that they then train as others do. On a CPU the compiler only
traces, and a stand-in repeats the step; tests/gpu/test_gpu_speed.py has the real ones.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from again import Again, of

from mpx.acceleration.apply import Acceleration, Choice
from mpx.acceleration.compiled import Compiled
from mpx.acceleration.decide import decide
from mpx.acceleration.graph import WARMUP, StepGraph
from mpx.training import callbacks
from mpx.training.callbacks import TIMED, CompileIfItPays

STEPS = [
    "model=mlp", "precision=fp32", "data.batch_size=32", "numerics.every=30", "trainer.progress=off",
    "trainer.warmup_steps=4", "trainer.max_epochs=3", "trainer.limit_train_batches=20",
    "trainer.limit_val_batches=1", "trainer.limit_test_batches=1",
]  # fmt: skip
DECIDED_AT = WARMUP + 3 + TIMED


class Clock:
    """In place of mpx.measure.windows.Clock: its time is set by hand."""

    now = 0.0

    def synchronize(self):
        pass

    def mark(self):
        return self.now

    def between(self, first, second):
        return 1e3 * (second - first)


def decided(batches, step_s, *, epoch=200, validation_s=0.0, accumulated=1, done=0):
    """What CompileIfItPays chooses in a run of so many batches."""
    acceleration = SimpleNamespace(steady_after=6, compile=lambda step: None)
    choice = Choice(True, "off", False, undecided=True, why={"compile": ""})
    callback = CompileIfItPays(choice, acceleration, clock := Clock(), batches // accumulated, [])
    trainer = SimpleNamespace(accumulate_grad_batches=accumulated)
    for batch in range(done, batches):
        number = batch % epoch
        trainer.global_step = (batch + 1) // accumulated
        clock.now += step_s
        callback.on_train_batch_end(trainer, None, None, None, number)
        clock.now += validation_s if number + 1 == epoch else 0.0
    return callback.choice


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"batches": 1_800, "step_s": 0.05}, "off"),  # 16 of them are timed
        ({"batches": 2_000, "step_s": 0.05}, "default"),
        ({"batches": 30_000, "step_s": 0.05, "done": 28_400}, "off"),
        ({"batches": 2_000, "step_s": 0.05, "accumulated": 4}, "default"),
        ({"batches": 1_000, "step_s": 0.05, "epoch": 20, "validation_s": 60.0}, "off"),
        ({"batches": 1_000, "step_s": 0.05, "epoch": 1, "validation_s": 60.0}, "default"),
    ],
    ids=str,
)
def test_compiled_if_the_rest_takes_long(how, expected):
    choice = decided(**how)
    assert (choice.compile, choice.undecided) == (expected, False)
    assert choice.why["compile"].endswith(" s, pays from 90 s")


@pytest.fixture
def undecided(monkeypatch):
    """undecided(pays_from_s, graphed): from now on runs time their first steps, and repeat them."""
    compiler = torch.compile

    def switch(pays_from_s, graphed):
        def apply(choice, model, loss, *, ranks, version, searched):
            recorder = Again()
            recorder.graph = (
                StepGraph(model, version, required=False, tell=print, recorder=recorder) if graphed else None
            )
            compiled = Compiled(loss, "default", in_graph=graphed, required=False, tell=print, later=True)
            return Acceleration(graph=recorder.graph, compiled=compiled)

        monkeypatch.setattr(
            torch, "compile", lambda function, **kwargs: compiler(function, **kwargs | {"backend": "eager"})
        )
        monkeypatch.setattr(
            "mpx.training.assemble.decide", lambda *facts: replace(decide(*facts), undecided=True)
        )
        monkeypatch.setattr(callbacks, "PAYS_FROM_S", pays_from_s)
        monkeypatch.setattr("mpx.training.assemble.apply", apply)

    return switch


@pytest.mark.parametrize("graphed", [True, False])
def test_compiled_from_some_step_on(train, undecided, graphed):
    choice = [*STEPS, "sparsity=2of4", "sparsity.shape_rule=any"]
    plain = train(*choice, "study=plain")
    undecided(0.0, graphed)
    switched = train(*choice, "study=switched")
    assert (plain.code, switched.code) == (0, 0), plain.err + switched.err
    assert f"speed: compiled from step {DECIDED_AT} on ({60 - DECIDED_AT} batches of " in switched.out
    (expected, without), (weights, record) = of(switched, "plain"), of(switched, "switched")
    assert all(torch.equal(expected[name], weights[name]) for name in expected)
    assert record["metrics"] == without["metrics"]
    chosen = record["speed"]["chosen"]
    assert (chosen["compile"], chosen["compiled"]["from_step"]) == ("default", DECIDED_AT)
    assert not graphed or chosen["graph"]["recorded"] == 3  # plain, compiled, pruned
    # after warming up: compiled, and pruned
    assert record["speed"]["measured_steps"] == 60 - DECIDED_AT - 4 - 4


def test_what_does_not_pay_is_said(train, undecided):
    undecided(math.inf, graphed=True)
    ran = train(*STEPS)
    assert ran.code == 0, ran.err
    assert f"speed: not compiled ({60 - DECIDED_AT} batches of " in ran.out
    chosen = ran.record["speed"]["chosen"]
    assert (chosen["compile"], chosen["compiled"]["compiled_calls"]) == ("off", 0)
    assert ran.record["speed"]["measured_steps"] == 60 - 4
