"""The fastest way is chosen that computes what the model does. A way is a plan of kernels by a backend."""

import functools
import math

import pytest
import torch

from mpx.deploy import choose
from mpx.deploy.choose import Way, differs_from
from mpx.errors import UserError


def ways(*names):
    return [Way(name, {}, "eager") for name in names]


@pytest.fixture
def chosen(monkeypatch):
    """chosen({way: (samples per second, output or error)}) -> the choice for a model whose output is 1."""

    def run(found, allowed=10.0):
        rates = {}

        def call_by(way):
            rates["now"], value = found[way.plan]

            def call(x):
                if isinstance(value, Exception):
                    raise value
                return torch.full((2,), float(value))

            return call

        monkeypatch.setattr(choose, "throughput", lambda call, x: rates["now"])
        differs = functools.partial(differs_from, torch.ones(2), allowed)
        return choose.choose(ways(*found), call_by, torch.zeros(2), differs, lambda part: None)

    return run


def test_the_fastest_is_chosen(chosen):
    choice = chosen({"a": (10, 1), "b": (30, 1), "c": (20, 1)})
    assert choice.way.plan == "b"
    assert choice.record()["candidates"] == {"eager, a": 10, "eager, b": 30, "eager, c": 20}
    assert choice.refused == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (100, "wrong result: relative error 9.9e+01, more than 1.0e+01"),
        (math.nan, "its outputs are not finite"),
        (RuntimeError("no\nstream"), "no stream"),
        (NotImplementedError("no such kernel"), "no such kernel"),
    ],
)
def test_a_way_that_fails_or_computes_something_else_is_refused(chosen, value, reason):
    choice = chosen({"slow": (1, 1), "fast": (2, value)})
    assert (choice.way.plan, choice.refused) == ("slow", {"eager, fast": reason})
    with pytest.raises(
        UserError,
        match=r"^batch=2 is not possible by backend=eager: .*Leave that size "
        r"out, or use another backend=",
    ):
        chosen({"fast": (2, value), "faster": (3, value)})
