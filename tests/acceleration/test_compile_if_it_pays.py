"""A run whose steps are compiled from some step on trains as one whose steps are not. On a CPU the compiler only traces, and a stand-in
repeats the step; tests/gpu/test_gpu_speed.py has the real ones."""

import json
from dataclasses import replace

import pytest
import torch
from again import Again, of

from mpx.acceleration import decide as rules
from mpx.acceleration.apply import Acceleration
from mpx.acceleration.compiled import Compiled
from mpx.acceleration.graph import WARMUP, StepGraph
from mpx.acceleration.payoff import Figures, Notebook
from mpx.training.compiling import TIMED

STEPS = ["model=mlp", "precision=fp32", "trainer.progress=off", "data.batch_size=32", "trainer.warmup_steps=4", "numerics.every=30"]
STEPS += ["trainer.max_epochs=3", "trainer.limit_train_batches=20", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
DECIDED_AT = WARMUP + 3 + TIMED


@pytest.fixture
def undecided(monkeypatch, tmp_path):
    """undecided(figures): from now on runs time their first steps, repeat them, and compile them if that pays by `figures`. Returns the
    notebook in which they write what they measured."""
    compiler, choose = torch.compile, rules.choose

    def switch(figures, graphed):
        notebook = Notebook("this step")

        def apply(choice, model, loss, *, ranks, version, searched):
            recorder = Again()
            recorder.graph = StepGraph(model, version, required=False, tell=print, recorder=recorder) if graphed else None
            compiled = Compiled(loss, model, "default", in_graph=graphed, required=False, tell=print, later=True)
            return Acceleration(graph=recorder.graph, compiled=compiled)

        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(torch, "compile", lambda function, **kwargs: compiler(function, **kwargs | {"backend": "eager"}))
        monkeypatch.setattr(rules, "choose", lambda *wishes: replace(choose(*wishes), undecided=figures))
        monkeypatch.setattr("mpx.training.assemble.notebook_of", lambda *args: notebook)
        monkeypatch.setattr("mpx.training.assemble.apply", apply)
        return notebook

    return switch


ALWAYS, NEVER = Figures(compile_s=0.0, saves=1e9), Figures(compile_s=1e9, saves=0.5)


@pytest.mark.parametrize("graphed", [True, False])
def test_compiled_from_some_step_on(train, undecided, graphed):
    plain = train(*STEPS, "sparsity=2of4", "sparsity.shape_rule=any", "study=plain")
    notebook = undecided(ALWAYS, graphed)
    switched = train(*STEPS, "sparsity=2of4", "sparsity.shape_rule=any", "study=switched")
    assert (plain.code, switched.code) == (0, 0), plain.err + switched.err
    assert f"speed: compiled from step {DECIDED_AT} on ({60 - DECIDED_AT} batches of " in switched.out
    (expected, without), (found, record) = of(switched, "plain"), of(switched, "switched")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert record["metrics"] == without["metrics"]
    chosen, known = record["speed"]["chosen"], json.loads(notebook.path.read_text())
    assert (chosen["compile"], chosen["compiled"]["from_step"]) == ("default", DECIDED_AT)
    assert "takes 0 s, typically" in chosen["why"]["compile"]
    assert known["compile_s"] > 0
    assert known["compiled_ms"] > 0
    slower = chosen["compiled"]["given_up"] is not None  # as it may be on a CPU
    if graphed:
        assert chosen["graph"]["recorded"] == 3 + slower  # plain, compiled, pruned
    if slower:
        assert chosen["compiled"]["given_up"].startswith("a compiled step takes ")
    else:
        assert record["speed"]["measured_steps"] == 60 - DECIDED_AT - 4 - 4  # after warming up for the compiled and the pruned steps


def test_what_does_not_pay_is_said_and_remembered(train, undecided):
    notebook = undecided(NEVER, graphed=True)
    ran = train(*STEPS)
    assert ran.code == 0, ran.err
    assert f"speed: not compiled ({60 - DECIDED_AT} batches of " in ran.out
    assert ran.record["speed"]["chosen"]["compile"] == "off"
    assert ran.record["speed"]["chosen"]["compiled"] == {"compiled_calls": 0, "from_step": None, "given_up": None}
    assert ran.record["speed"]["measured_steps"] == 60 - 4
    known = json.loads(notebook.path.read_text())
    assert (known["step_ms"] > 0, known["compiled_ms"]) == (True, None)


def test_a_run_too_short_to_decide(train, undecided):
    undecided(ALWAYS, graphed=True)
    ran = train(*STEPS, f"trainer.max_steps={DECIDED_AT - 1}")
    assert ran.code == 0, ran.err
    assert (ran.record["speed"]["chosen"]["compile"], ran.record["speed"]["chosen"]["compiled"]["from_step"]) == ("off", None)
