"""On a CUDA device: nothing in a training step waits for the device, also when steps are skipped; looks at
gradients search nothing.
"""

import pytest
import torch
from few_steps import FEW_STEPS

from mpx.precision.scaling import LossScale
from mpx.training.module import TrainingModule

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]


@pytest.fixture
def no_waiting():
    """Whatever makes the host wait for the device raises, between the two calls that it yields."""
    yield lambda: torch.cuda.set_sync_debug_mode("error"), lambda: torch.cuda.set_sync_debug_mode("default")
    torch.cuda.set_sync_debug_mode("default")


def test_loss_scale_never_waits(no_waiting):
    begin, end = no_waiting
    weight = torch.nn.Parameter(torch.zeros(8, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(1.0, device="cuda"), momentum=0.9, fused=True)
    scale, gradients = (
        LossScale("cuda", initial=4.0),
        torch.ones(8, device="cuda") * torch.tensor([float("inf")], device="cuda"),
    )
    begin()
    for step in range(6):
        weight.grad = gradients.clone() if step % 2 == 0 else torch.ones_like(weight) * scale.scale
        scale.unscale_([weight.grad])
        scale.step(optimizer)
        scale.update()
    end()
    assert int(scale.skipped) == 3
    assert weight[0].item() == pytest.approx(-(1 + 1.9 + 2.71))


@pytest.mark.parametrize("model", ["resnet20", "lstm", "bert_small", "mlp"])
@pytest.mark.parametrize("precision", ["amp", "amp_bf16", "fp8", "fp16_true", "o2", "tf32"])
def test_a_training_step_never_waits(train, monkeypatch, no_waiting, model, precision):
    """Forward, backward, unscaling, clipping, masks, step, schedule, average; all but the sampled and the
    logged steps.
    """
    begin, end = no_waiting
    step, seen = TrainingModule.optimizer_step, []

    def watched(self, *args, **kwargs):
        seen.append(self.trainer.global_step)
        try:
            if len(seen) > 2:  # kernels and buffers are made in the first steps
                begin()
            step(self, *args, **kwargs)
        finally:
            end()

    monkeypatch.setattr(TrainingModule, "optimizer_step", watched)
    few = [
        *FEW_STEPS,
        "trainer.limit_train_batches=8",
        "trainer.gradient_clip_val=1.0",
        "trainer.ema_decay=0.9",
        "numerics.every=1000",
    ]
    # so low because AdamW in FP16 throughout takes steps far larger
    few += ["optimizer.lr=1e-6", "trainer.log_every_n_steps=100"]
    ran = train(f"model={model}", f"precision={precision}", "sparsity=2of4", "sparsity.start=0.2", *few)
    assert ran.code == 0, ran.err
    assert len(seen) == 8
