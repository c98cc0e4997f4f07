"""On a CUDA device: what activation checkpointing computes again in the backward pass has the format that the forward pass had."""

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mpx
from mpx.precision.modes import MODES, lacking

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FORMATS = {
    "amp_bf16": (lambda: nn.LSTM(64, 64), (16, 8, 64)),  # autocast alone runs it in FP16
    "tf32": (lambda: nn.Conv2d(3, 16, 3), (8, 3, 16, 16)),
    "fp8": (lambda: nn.Linear(4096, 4096), (4096, 4096)),  # a smaller layer stays in BF16
}


class Block(pl.LightningModule):
    """reentrant: how its layer is computed again in the backward pass; None: it is not."""

    def __init__(self, layer, reentrant, automatic):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.reentrant, self.automatic_optimization = layer(), reentrant, automatic

    def outputs(self, x):
        out = self.layer(x)
        return out[0] if isinstance(out, tuple) else out

    def training_step(self, batch, index):
        x = batch.requires_grad_()
        out = self.outputs(x) if self.reentrant is None else checkpoint(self.outputs, x, use_reentrant=self.reentrant)
        loss = out.float().square().mean()
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        self.optimizers().step()
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("automatic", [True, False], ids=["automatic", "manual"])
@pytest.mark.parametrize("mode", FORMATS)
def test_a_checkpoint_computes_the_same_again(mode, automatic, tmp_path):
    if lacking(MODES[mode], torch.device("cuda")):
        pytest.skip(f"this device has no {mode}")
    layer, shape = FORMATS[mode]
    batches = list(torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))

    def weights(reentrant):
        module = Block(layer, reentrant, automatic)
        trainer = pl.Trainer(
            accelerator="gpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, plugins=mpx.Precision(mode, emulate="never"),
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
        return module.state_dict()

    plain = weights(None)
    for again in (weights(False), weights(True)):
        assert all(torch.equal(value, plain[name]) for name, value in again.items())
