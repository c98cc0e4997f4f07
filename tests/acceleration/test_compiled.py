"""Compiled steps train as plain ones, and the model stays what it is. What is compiled to C++ is slow; on a
CUDA device see tests/gpu.
"""

import shutil
from functools import partial

import pytest
import torch
from again import of
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from mpx.acceleration.apply import Acceleration
from mpx.acceleration.compiled import Compiled
from mpx.errors import UserError

needs_compiler = pytest.mark.skipif(
    not shutil.which("g++") and not shutil.which("clang++"), reason="needs a C++ compiler"
)
WORDS = "model=mlp trainer.max_epochs=1 trainer.progress=off data.batch_size=64 numerics.every=8"
STEPS = WORDS.split()


@pytest.mark.parametrize(
    ("precision", "backend"),
    [
        ("amp_bf16", "eager"),  # traces, and computes as plain steps do
        pytest.param("fp32", "inductor", marks=[pytest.mark.slow, needs_compiler]),
    ],
)
def test_compiled_run(train, monkeypatch, precision, backend):
    compiler = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **kwargs: compiler(function, **kwargs | {"backend": backend})
    )
    # emulated, as on a CPU without BF16 instructions, nothing is compiled
    native = [f"precision={precision}", "precision.emulate=never"]
    plain = train(*STEPS, *native, "speed=plain", "study=plain")
    compiled = train(*STEPS, *native, "trainer.compile=default", "study=compiled")
    assert (plain.code, compiled.code) == (0, 0), plain.err + compiled.err
    assert "compiled (default) (trainer.compile=default)" in compiled.out
    weights, records = zip(*(of(compiled, study) for study in ("plain", "compiled")), strict=True)
    assert weights[0].keys() == weights[1].keys()
    chosen = records[1]["speed"]["chosen"]
    # sampled at 0, 8 and 16
    assert chosen["compiled"] == {"compiled_calls": 20 - 3, "from_step": 0, "given_up": None}
    assert records[1]["metrics"]["test/loss"] == pytest.approx(
        records[0]["metrics"]["test/loss"], rel=1e-4 if precision == "fp32" else 0.02
    )
    assert records[1]["precision"]["observed"] == records[0]["precision"]["observed"]
    assert records[1]["speed"]["model_tflops_per_s"] > 0


def failing(graph, inputs):
    raise RuntimeError("no such backend here")


def broken(monkeypatch, **settings):
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **kwargs: compiled(function, backend=failing))
    return Compiled(nn.Linear(2, 2), "default", in_graph=True, **settings)


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch):
    lines = []
    layer = broken(monkeypatch, required=False, tell=lines.append)
    assert layer(torch.ones(1, 2)).shape == layer(torch.ones(1, 2)).shape == (1, 2)
    assert len(lines) == 1
    assert lines[0].startswith("speed: not compiled after all (")
    assert "no such backend here" in lines[0]
    assert layer.record()["compiled_calls"] == 0


def test_asked_for_by_hand_it_must_compile(monkeypatch):
    layer = broken(monkeypatch, required=True, tell=print)
    with pytest.raises(
        UserError,
        match=r"trainer\.compile failed: .*no such backend here\. Use "
        r"trainer\.compile=off",
    ):
        layer(torch.ones(1, 2))


def failing_backward(compiler, function, **kwargs):
    """torch.compile with a compiler that makes wrong code for the backward pass: it fails when it runs, not
    when it is made.
    """

    def wrong(graph, inputs):
        def call(args):
            raise UnboundLocalError("cannot access local variable 'buf29'")

        call._boxed_call = True
        return call

    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward), bw_compiler=wrong
    )
    return compiler(function, **kwargs | {"backend": backend})


def test_a_compiled_backward_pass_that_fails_runs_uncompiled(train, monkeypatch):
    plain = train(*STEPS, "study=plain")
    monkeypatch.setattr(torch, "compile", partial(failing_backward, torch.compile))
    monkeypatch.setattr(
        "mpx.training.assemble.apply",
        lambda choice, model, loss, **kwargs: Acceleration(compiled=optional(loss)),
    )
    failed = train(*STEPS, "study=failed")
    assert (plain.code, failed.code) == (0, 0), plain.err + failed.err
    assert "speed: not compiled after all (cannot access local variable 'buf29')" in failed.out
    weights, records = zip(*(of(failed, study) for study in ("plain", "failed")), strict=True)
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert records[1]["speed"]["chosen"]["compiled"] == {
        "compiled_calls": 1,
        "from_step": 0,
        "given_up": "cannot access local variable 'buf29'",
    }


def optional(loss):
    return Compiled(loss, "default", in_graph=False, required=False, tell=print)
