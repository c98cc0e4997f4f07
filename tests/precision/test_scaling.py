"""Loss scaling: the golden sequences of torch.amp.GradScaler and of apex, floor and ceiling, static scales,
state.
"""

import math

import pytest
import torch

from mpx.precision.scaling import LossScale

INF = float("inf")


def run(scale: LossScale, gradients, optimizer_class=torch.optim.SGD, **kwargs):
    """One weight with those gradients, SGD with learning rate 1 -> [(scale, weight)] after each step."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = optimizer_class([weight], lr=1.0, **kwargs)
    seen = []
    for gradient in gradients:
        weight.grad = torch.full((1,), gradient) * scale.scale
        scale.unscale_([weight.grad])
        scale.step(optimizer)
        scale.update()
        seen.append((scale.scale.item(), weight.item()))
    return seen


def test_same_as_grad_scaler():
    """Against torch.amp.GradScaler itself, on a random sequence of good, infinite and NaN gradients."""
    generator = torch.Generator().manual_seed(0)
    gradients = [
        (1.0, 1.0, 1.0, INF, float("nan"))[i] for i in torch.randint(0, 5, (200,), generator=generator)
    ]
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    expected = []
    for gradient in gradients:
        weight.grad = torch.full((1,), gradient) * theirs.scale(torch.ones(1))
        theirs.step(optimizer)
        theirs.update()
        expected.append((theirs.get_scale(), weight.item()))
    assert run(LossScale("cpu", initial=2.0**10, growth_interval=3, ceiling=math.inf), gradients) == expected


def test_apex_growth_after_2000_clean_steps_up_to_its_maximum():
    scale = LossScale("cpu", initial=2.0**23)
    scales = [value for value, _ in run(scale, [0.0] * 6000)]
    assert scales[1998] == 2.0**23
    assert scales[1999] == 2.0**24
    assert scales[-1] == 2.0**24


def test_floor_is_kept_and_an_overflow_there_is_noted():
    scale = LossScale("cpu", initial=4.0, floor=2.0)
    assert [value for value, _ in run(scale, [INF, 1, INF, INF])] == [2, 2, 2, 2]
    assert int(scale.at_floor) == 2
    assert (scale.lowest.item(), scale.highest.item()) == (2.0, 4.0)


def test_static_scale_stays_and_still_skips():
    scale = LossScale("cpu", initial=128.0, dynamic=False, growth_interval=1)
    assert run(scale, [1, INF, 1]) == [(128, -1), (128, -1), (128, -2)]
    assert int(scale.skipped) == 1


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_skipped_step_leaves_optimizer_state_alone(optimizer):
    weight = torch.nn.Parameter(torch.ones(4))
    kwargs = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    built, scale = optimizer([weight], lr=0.1, fused=True, **kwargs), LossScale("cpu")
    states = []
    for gradient in (1.0, INF):
        weight.grad = torch.full((4,), gradient)
        scale.unscale_([weight.grad])
        scale.step(built)
        scale.update()
        states.append([value.clone() for value in built.state[weight].values()] + [weight.detach().clone()])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_sparse_gradients_overflow_as_in_grad_scaler(dtype):
    """Of two that meet at one index FP16 cannot hold the sum."""

    def table():
        table = torch.nn.Embedding(3, 2, sparse=True, dtype=dtype)
        (table(torch.tensor([1, 1, 0])).float() * 40000.0).sum().backward()
        return table.weight

    ours, theirs = table(), table()
    scale, scaler = LossScale("cpu", initial=4.0), torch.amp.GradScaler("cpu")
    scale.unscale_([ours.grad])
    optimizer, inverse = torch.optim.SGD([theirs]), torch.full((), 0.25)
    # unscale_ refuses FP16 outside of fused steps
    found = scaler._unscale_grads_(optimizer, inverse, torch.zeros(()), allow_fp16=True)
    assert (
        [scale.found_inf.item()]
        == [value.item() for value in found.values()]
        == [float(dtype == torch.float16)]
    )
    assert torch.equal(ours.grad.to_dense(), theirs.grad.to_dense())


def test_state_goes_to_grad_scaler_and_back():
    ours = LossScale("cpu", initial=8.0, growth_interval=3)
    run(ours, [1, INF, 1])
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0)
    theirs.load_state_dict(ours.state_dict())
    assert (theirs.get_scale(), theirs._get_growth_tracker()) == (4.0, 1)
    again = LossScale("cpu")
    again.load_state_dict(theirs.state_dict())
    assert (again.scale.item(), int(again.clean)) == (4.0, 1)
    full = LossScale("cpu")
    full.load_state_dict(ours.state_dict())
    assert full.state_dict() | {"growth_interval": 3} == ours.state_dict()


@pytest.mark.parametrize("fused", [True, False])
def test_a_skipped_first_step_leaves_no_garbage_in_the_momentum(fused, monkeypatch):
    """PyTorch's fused SGD would start from torch.empty_like."""
    monkeypatch.setattr(
        torch, "empty_like", lambda tensor, **kwargs: torch.full_like(tensor, float("nan"), **kwargs)
    )
    seen = run(LossScale("cpu", initial=4.0), [INF, 1.0, 1.0], fused=fused, momentum=0.5)
    assert [weight for _, weight in seen] == [0.0, -1.0, -2.5]


def test_a_dynamic_scale_does_not_begin_at_a_static_one():
    """fp16_true's scale of 1, carried into amp, would have let gradients vanish for thousands of steps."""
    static = LossScale("cpu", initial=1.0, dynamic=False)
    run(static, [1, INF])
    dynamic = LossScale("cpu")
    dynamic.load_state_dict(static.state_dict())
    assert (dynamic.scale.item(), dynamic.initial, dynamic.lowest.item(), int(dynamic.skipped)) == (
        2.0**16,
        2.0**16,
        2.0**16,
        1,
    )
