"""Random programs with mpx.compat.amp and in plain PyTorch (reference.py, which lists where the two mean to differ): everything is the
same after every event, bit for bit.

$ MPX_PROGRAMS=2000 pytest tests/compat/differential
"""

import math
import os
from itertools import zip_longest

import pytest
import torch
from arithmetic import Arithmetic
from drawing import draw
from player import Player
from programs import Add, Checkpoint, Clip, Evaluate, Pass, Rescale, Step, Zero
from reference import OPTIONAL, Reference
from torch.utils._pytree import tree_leaves

from mpx.compat import amp

COUNT = int(os.environ.get("MPX_PROGRAMS", 50))
AT_ONCE = 25


def slow_after_the_first(values):
    return [pytest.param(value, marks=pytest.mark.slow if place else ()) for place, value in enumerate(values)]


@pytest.fixture(
    params=[
        "native",
        "emulated",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    ]
)
def arithmetic(request, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    found = Arithmetic(emulated=request.param == "emulated", device="cuda" if request.param == "cuda" else "cpu")
    found.apply(monkeypatch)
    return found


def difference(program, arithmetic, rules=OPTIONAL):
    """In words: the first event after which something differs; None if nothing ever does."""
    player, reference = Player(program, arithmetic.device), Reference(program, arithmetic, rules)
    for number, event in enumerate(program.events):
        results = player.play(event), reference.play(event)
        for name, (found, expected) in [("result", results), *compared(player, reference)]:
            if not same(found, expected):
                with pytest.raises(AssertionError) as error:
                    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
                return f"{program}: after event {number}, {event}, {name}: {error.value}"
    return None


def same(found, expected):
    """Bit for bit, or both NaN: torch.testing.assert_close says no more, at ten times the time."""
    pairs = zip_longest(tree_leaves(found), tree_leaves(expected))
    return all(
        (one.dtype, one.shape) == (other.dtype, other.shape)
        and (torch.equal(one, other) or ((one == other) | (one.isnan() & other.isnan())).all())
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        else one == other
        for one, other in pairs
    )


def compared(player, reference):
    built = reference.built
    yield "weights", [[[*m.parameters(), *m.buffers()] for m in models] for models in (player.models, built.models)]
    for i, optimizer in enumerate(player.optimizers):
        found, expected = list(amp.master_params(optimizer)), built.stepped(i)
        yield f"what optimizer {i} steps", (found, expected)
        yield f"state of optimizer {i}", (states(optimizer, found), states(built.optimizers[i], expected))
        if not reference.waiting[i]:
            yield f"gradients of optimizer {i}", ([p.grad for p in found], [p.grad for p in expected])
    yield "scales", ([scaler.state_dict() for scaler in amp._amp_state.loss_scalers], reference.scales())


def states(optimizer, parameters):
    return [dict(sorted(optimizer.state[p].items())) if p in optimizer.state else {} for p in parameters]


@pytest.mark.parametrize("first", slow_after_the_first(range(0, COUNT, AT_ONCE)))
def test_programs(first, arithmetic):
    found = [difference(draw(seed), arithmetic) for seed in range(first, min(first + AT_ONCE, COUNT))]
    assert not [text for text in found if text is not None]


@pytest.mark.slow
@pytest.mark.parametrize("rule", sorted(OPTIONAL))
def test_programs_notice_a_rule_that_is_left_out(rule, monkeypatch):
    arithmetic = Arithmetic(emulated=False)
    arithmetic.apply(monkeypatch)
    assert any(difference(draw(seed), arithmetic, OPTIONAL - {rule}) for seed in range(100))


def test_programs_do_everything():
    """The events of the first fifty, and the values that make a difference in them."""
    programs = [draw(seed) for seed in range(50)]
    events = [event for program in programs for event in program.events]
    passes = [event for event in events if isinstance(event, Pass)]
    assert {type(event) for event in events} == {Add, Checkpoint, Clip, Evaluate, Pass, Rescale, Step, Zero}
    assert {program.level for program in programs} == {"O0", "O1", "O2", "O3"}
    assert {event.delay for event in passes} == {True, False}
    assert {len(event.optimizers) for event in passes} == {1, 2}
    assert {event.loss_id for event in passes} == {0, 1, 2}
    assert any(event.poisoned is not None for event in passes)
    assert any(event.factor == math.inf for event in passes)
    assert any(event.closure for event in events if isinstance(event, Step))
