"""ResNet-20, -18 and -50 (He et al. 2015, arXiv:1512.03385), from torchvision's blocks.

Parameter names are torchvision's. With `stem: imagenet` and three channels a checkpoint loads into the plain
torchvision network. The small stem differs in one convolution.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50
from torchvision.models.resnet import BasicBlock

from mpx.data.spec import Spec
from mpx.errors import UserError

# images up to this side in pixels get the small stem; the ImageNet stem divides the side by 4 before the
# first block
SMALL_IMAGE = 64


class CifarResNet(nn.Module):
    """The CIFAR network of section 4.2: a 3×3 convolution and three groups of n basic blocks (16, 32, 64
    channels), with depth 6n + 2.

    If a group halves the image, the shortcut is a 1×1 convolution (the paper's option B), as in torchvision's
    block.
    """

    def __init__(self, blocks_per_group: int, in_channels: int, num_classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _group(16, 16, blocks_per_group, stride=1)
        self.layer2 = _group(16, 32, blocks_per_group, stride=2)
        self.layer3 = _group(32, 64, blocks_per_group, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, C, H, W] -> [B, classes]."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def _group(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    downsample = None
    if stride != 1 or in_channels != channels:
        downsample = nn.Sequential(
            nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
        )
    first = BasicBlock(in_channels, channels, stride, downsample)
    return nn.Sequential(first, *(BasicBlock(channels, channels) for _ in range(blocks - 1)))


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """The setting `name` is resnet20, resnet18 or resnet50. `stem` has no effect on resnet20, which has the
    CIFAR stem.
    """
    channels, height, width = spec.shape
    if cfg["name"] == "resnet20":
        return CifarResNet(3, channels, spec.classes)
    networks = {"resnet18": resnet18, "resnet50": resnet50}
    if cfg["name"] not in networks:
        raise UserError(
            f"model.name={cfg['name']} is not one of resnet20, resnet18, resnet50; use "
            "model=torchvision for others."
        )
    model = networks[cfg["name"]](num_classes=spec.classes)
    _replace_stem(model, cfg["stem"], channels, max(height, width))
    return model


def _replace_stem(model: Any, stem: str, channels: int, side: int) -> None:
    """Fit the first convolution to the image's channels; for small images it is 3×3 with stride 1 and without
    pooling.
    """
    small = stem == "small" or (stem == "auto" and side <= SMALL_IMAGE)
    if small:
        model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != model.conv1.in_channels:
        model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
