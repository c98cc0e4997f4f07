"""Convolutions: every direction is checked against another way to compute it, and cuDNN's choices are kept apart."""

import threading

import pytest
import torch
from torch.nn.functional import conv2d

from mpx.bench.kernels import conv
from mpx.bench.kernels.conv import DIRECTIONS, LAYERS, Layer, work
from mpx.bench.show.conv import gains
from mpx.measure.matmul import WrongProductError

CPU = torch.device("cpu")
SMALL = Layer("3×3/2, 8→16", 8, 16, 3, 2, 1)


@pytest.mark.parametrize(("layout", "unfolded"), [("NCHW", False), ("channels_last", False), ("NCHW", True)])
@pytest.mark.parametrize("layer", [SMALL, *LAYERS], ids=lambda layer: layer.name)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_result_is_autograds(direction, layer, layout, unfolded):
    """Of all images, by PyTorch's own convolution in float64."""
    made = work(layer, direction, "fp32", layout, 34, 6, CPU, unfolded=unfolded)
    _, grad, *operands, stride, padding = made.call.args
    x, weight = (operand.double().requires_grad_() for operand in operands)
    out = conv2d(x, weight, None, stride, padding)
    expected = out if direction == "forward" else torch.autograd.grad(out, x if direction == "input gradient" else weight, grad.double())[0]
    assert made.error(made.call()) < 1e-5
    assert (made.call().double() - expected).norm() < 1e-5 * expected.norm()
    assert made.flops == 2 * out.numel() * weight[0].numel()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("wrong", [lambda out: out * 1.1, lambda out: out.flip(0), lambda out: out * float("nan")])
def test_a_wrong_result_is_noticed(direction, wrong):
    made = work(SMALL, direction, "fp16", "NCHW", 16, 6, CPU)
    with pytest.raises(WrongProductError):
        made.error(wrong(made.call()))


def test_tf32_inside_fp32_would_be_noticed():
    from mpx.precision.rounding import to_tf32

    made = work(LAYERS[2], "forward", "fp32", "NCHW", 64, 4, CPU)
    *_, x, weight, stride, padding = made.call.args
    with pytest.raises(WrongProductError):
        made.error(conv2d(to_tf32(x), to_tf32(weight), None, stride, padding))


def test_each_choice_is_made_in_a_thread_of_its_own():
    assert conv._alone(threading.get_ident) != threading.get_ident()
    with pytest.raises(ValueError, match="invalid literal"):
        conv._alone(int, "x")
    before = torch.backends.cudnn.benchmark
    with conv.benchmark(not before):
        assert torch.backends.cudnn.benchmark is not before
    assert torch.backends.cudnn.benchmark is before


def test_gains_compare_both_of_cudnns_ways():
    row = {"layer": "a", "direction": "forward", "format": "fp16", "layout": "NCHW"}
    rows = [
        row | {"algorithm": "heuristic", "ms": 3.0, "workspace_mib": 10.0},
        row | {"algorithm": "autotuned", "ms": 2.0, "workspace_mib": 40.0},
    ]
    rows += [row | {"format": "bf16", "algorithm": "heuristic", "ms": 3.0, "workspace_mib": 10.0}]
    (found,) = gains(rows)
    assert (found["gain"], found["heuristic_mib"], found["autotuned_mib"]) == (1.5, 10.0, 40.0)
