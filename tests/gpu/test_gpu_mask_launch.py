"""On a CUDA device the masks of a whole model come out of one launch, equal to those of PyTorch's operations,
also in a CUDA graph.
"""

import random

import pytest
import torch
from torchvision.models import resnet50
from transformers import BertConfig, BertModel

from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.patterns import NofM

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
KINDS = ("normal", "tied", "subnormal", "zero rows", "infinite and NaN")


def launched(found, n=2):
    """The kernel's masks, of which there has to be one for each weight."""
    from mpx.sparsity.mask_launch import masks_by_place

    masks = masks_by_place(found, n)
    assert len(masks) == len(found)
    return [masks[place] for place in range(len(found))]


def assert_same(masks, found, n=2):
    for mask, exact, weight in zip(masks, NofM(n, 4).masks(found), found, strict=True):
        assert mask.dtype == torch.bool
        assert mask.stride() == exact.stride() == weight.stride()
        assert torch.equal(mask, exact), (tuple(weight.shape), weight.stride(), int((mask != exact).sum()))


def drawn(shape, kind, dtype):
    values = torch.randn(shape, device="cuda")
    if kind == "tied":
        values = (2 * values).round() / 2
    if kind == "subnormal":
        values = (8 * values).round() * torch.finfo(dtype).smallest_normal / 64
    if kind == "infinite and NaN":
        values = values.where(values.abs() < 1, torch.nan).where(values < 1, -torch.inf)
    if kind == "zero rows":
        values[::2] = -0.0
    return values.to(dtype)


def random_weight(dice, dtype):
    """Of any width and up to three kernel dimensions, in one of the layouts that weights have."""
    shape = [dice.randint(1, 200), dice.choice([dice.randint(1, 300), 4 * dice.randint(1, 128)])]
    shape += [dice.randint(1, 5) for _ in range(dice.randint(0, 3))]
    weight = drawn(shape, dice.choice(KINDS), dtype)
    layout = dice.choice(["contiguous", "channels_last", "turned", "odd start"])
    if layout == "channels_last":
        return weight.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "turned":
        return weight.transpose(0, 1).contiguous().transpose(0, 1)
    return (
        torch.cat([weight.new_zeros(1), weight.flatten()])[1:].view(shape)
        if layout == "odd start"
        else weight
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_random_weights(dtype, seed):
    dice = random.Random(seed)
    torch.manual_seed(seed)
    found = [random_weight(dice, dtype) for _ in range(40)]
    for n in (1, 2, 3):
        assert_same(launched(found, n), found, n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("model", [resnet50, lambda: BertModel(BertConfig())], ids=["ResNet-50", "BERT-base"])
def test_whole_models(model, last, dtype):
    model = model().to("cuda", dtype)
    if last:
        model = model.to(memory_format=torch.channels_last)
    found = [weight.parameter for weight in weights(model, NofM(2, 4), Rules()) if weight.reason is None]
    masks = launched(found)
    assert_same(masks, found)
    buffers = {mask.untyped_storage().data_ptr() for mask in masks}
    # one of each launch
    assert len(buffers) == (2 if model.__class__.__name__ == "ResNet" and not last else 1)
    assert_same(NofM(2, 4).masks(found, compiled=True), found)


def test_a_cuda_graph_masks_the_weights_as_they_are_now():
    found = [torch.randn(64, 64, device="cuda"), torch.randn(32, 16, 3, 3, device="cuda")]
    launched(found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        masks = launched(found)
    for weight in found:
        weight.normal_()
    graph.replay()
    assert_same(masks, found)
