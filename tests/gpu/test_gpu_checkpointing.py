"""On a CUDA device: what activation checkpointing computes again in the backward pass has the format that the
forward pass had.
"""

import pytest
import torch
from recomputing import Recomputing
from silent import silent_trainer
from torch import nn

import mpx
from mpx.precision.modes import MODES, lacking

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FORMATS = {
    "amp_bf16": (lambda: nn.LSTM(64, 64), (16, 8, 64)),  # autocast alone runs it in FP16
    "tf32": (lambda: nn.Conv2d(3, 16, 3), (8, 3, 16, 16)),
    "fp8": (lambda: nn.Linear(4096, 4096), (4096, 4096)),  # a smaller layer stays in BF16
}


class Block(Recomputing):
    def __init__(self, layer, reentrant, automatic):
        super().__init__(reentrant, automatic)
        self.layer = layer()

    def block(self, x):
        out = self.layer(x)
        return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("automatic", [True, False], ids=["automatic", "manual"])
@pytest.mark.parametrize("mode", FORMATS)
def test_a_checkpoint_computes_the_same_again(mode, automatic):
    if lacking(MODES[mode], torch.device("cuda")):
        pytest.skip(f"this device has no {mode}")
    layer, shape = FORMATS[mode]
    batches = list(torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))

    def weights(reentrant):
        module = Block(layer, reentrant, automatic)
        trainer = silent_trainer(
            accelerator="gpu", devices=1, max_epochs=2, plugins=mpx.Precision(mode, emulate="never")
        )
        trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
        return module.state_dict()

    plain = weights(None)
    for again in (weights(False), weights(True)):
        assert all(torch.equal(value, plain[name]) for name, value in again.items())
