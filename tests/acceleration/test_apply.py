"""cuDNN's search belongs to training from its first step on: PyTorch keeps whichever algorithm a convolution
ran with first.
"""

import pytest
import torch
from torchvision.models.resnet import BasicBlock

from mpx.acceleration import decide


@pytest.mark.parametrize("searches", [True, False])
def test_every_training_step_searches_and_no_evaluation(train, monkeypatch, searches):
    seen = []
    forward = BasicBlock.forward

    def looked_at(self, x):
        seen.append((self.training, torch.backends.cudnn.benchmark))
        return forward(self, x)

    monkeypatch.setattr(BasicBlock, "forward", looked_at)
    monkeypatch.setattr(
        decide, "_search", lambda *asked, **given: (searches, "on a CPU there would be nothing to search")
    )
    few = "trainer.max_steps=3 trainer.limit_val_batches=1 trainer.limit_test_batches=1 numerics.every=2"
    assert train(*few.split(), "data.batch_size=4", "data.eval_batch_size=4").code == 0
    assert set(seen) == {(True, searches), (False, False)}
    assert not torch.backends.cudnn.benchmark
