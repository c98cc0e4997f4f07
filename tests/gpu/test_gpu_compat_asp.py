"""mpx.compat.ASP on a CUDA device: an ordinary script's fused optimizer, closure, autocast and GradScaler,
and no step that waits.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpx.compat import ASP, amp

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]

DEVICE = "cuda"
QUIET = {"verbosity": 0, "allow_permutation": False}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.bn = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
        )
        self.attention, self.head = nn.MultiheadAttention(32, 2, batch_first=True), nn.Linear(32, 8)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(F.relu(self.stem(x)))))  # [B, 32, H, W]
        x = x.flatten(2).transpose(1, 2)
        return self.head(self.attention(x, x, x)[0].mean(1))


def made(**arguments):
    torch.manual_seed(0)
    model = Net().to(DEVICE).to(memory_format=torch.channels_last)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True, **arguments)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 3, 8, 8, generator=generator).to(DEVICE), torch.arange(8, device=DEVICE)


def held(pruning, *optimizers):
    """Weights and optimizer state are zero where pruned, and have learnt elsewhere. How many weights are
    pruned.
    """
    masks = pruning.masks
    assert masks.verify(optimizers) == []
    for weight in masks.pruned:
        mask = masks.masks[weight.name]
        assert mask.device.type == DEVICE
        assert weight.parameter.isfinite().all()
        assert weight.parameter[mask].ne(0).float().mean() > 0.5
    return len(masks.pruned)


@pytest.mark.parametrize("closure", [False, True])
def test_prune_trained_model(closure, capsys):
    model, optimizer = made()
    x, y = batch(0)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # a trained model has an optimizer state
    pruning = ASP.prune_trained_model(model, optimizer, example_input=x)
    assert "Permuted the channels of the model" in capsys.readouterr().out
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for seed in range(3):
        x, y = batch(seed)

        def loss(x=x, y=y):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            value.backward()
            return value

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    assert held(pruning, optimizer) == 4  # conv, attention's two, head; the stem has three inputs
    assert any(
        not torch.equal(parameter, old) for parameter, old in zip(model.parameters(), before, strict=True)
    )


@pytest.mark.parametrize("fused", [True, False])
def test_autocast_and_grad_scaler(fused):
    """One step overflows: the scaler skips it, and no NaN reaches weights or state."""
    model, _ = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    pruning = ASP.init_model_for_pruning(model, **QUIET)
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    for seed, factor in enumerate((1.0, 1.0, float("inf"), 1.0)):
        x, y = batch(seed)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            loss = F.cross_entropy(model(x), y) * factor
        scaler.scale(loss).backward()
        before = model.head.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.head.weight, before) == (factor == float("inf"))
        held(pruning, optimizer)
    assert scaler.get_scale() == 512.0


def test_a_step_does_not_wait_for_the_device():
    model, optimizer = made()
    pruning = ASP.init_model_for_pruning(model, **QUIET)
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    x, y = batch(0)
    for mode in ("default", "error"):
        F.cross_entropy(model(x), y).backward()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    held(pruning, optimizer)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_with_amp(level):
    model, _ = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    pruning = ASP.prune_trained_model(model, optimizer)
    for seed in range(3):
        x, y = batch(seed)
        optimizer.zero_grad()
        with amp.scale_loss(F.cross_entropy(model(x), y), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    held(pruning, optimizer)
