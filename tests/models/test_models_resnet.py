"""ResNets: sizes of the paper, torchvision's names, stems."""

import pytest
import torchvision

from mpx.models import build


def parameters(model) -> int:
    return sum(p.numel() for p in model.parameters())


def test_resnet20_has_the_papers_size(cfg, spec):
    model = build(cfg("resnet20"), spec("cifar10"))
    # Table 6 says 0.27 million: 269,722 with parameter-free shortcuts, to which two 1×1 shortcuts with batch
    # norm come.
    assert parameters(model) == 269_722 + (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)
    assert (
        sum(name.count("conv") for name, _ in model.named_modules() if name.endswith(("conv1", "conv2")))
        == 19
    )


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_checkpoint_loads_into_plain_torchvision(name, cfg, spec):
    model = build(cfg(name, stem="imagenet"), spec("cifar10"))
    plain = getattr(torchvision.models, name)(num_classes=10)
    plain.load_state_dict(model.state_dict(), strict=True)


@pytest.mark.parametrize(
    ("stem", "data", "kernel"), [("auto", "digits", 3), ("auto", "cifar10", 3), ("imagenet", "digits", 7)]
)
def test_stem(stem, data, kernel, cfg, spec):
    model = build(cfg("resnet18", stem=stem), spec(data))
    assert model.conv1.kernel_size == (kernel, kernel)
    assert model.conv1.in_channels == spec(data).shape[0]
    assert isinstance(model.maxpool, torchvision.models.resnet18().maxpool.__class__) == (kernel == 7)
