"""Optimizer steps in real FP16 and BF16: what counts, what is divided by the loss scale, and what Lightning
knows of the format.
"""

import pytest
import torch
from silent import silent_trainer
from ways_to_step import BATCHES, REFUSED, Configured, trained

import mpx
from mpx.errors import UserError

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]
ON = {"accelerator": "cuda", "devices": 1}


@pytest.mark.parametrize("mode", ["fp32", "amp", "amp_bf16"])
@pytest.mark.parametrize(
    ("way", "steps"),
    [("no loss", BATCHES // 2), ("in a hook", BATCHES), ("manual", BATCHES), ("of the input", BATCHES)],
)
def test_a_step_is_one_that_had_gradients(way, steps, mode):
    weight, counted = trained(way, mode, **ON)
    exact, _ = trained(way, "fp32", **ON)
    torch.testing.assert_close(weight, exact, rtol=0.05, atol=0.02)
    assert counted == steps


@pytest.mark.parametrize("mode", ["amp", "fp16_true"])
@pytest.mark.parametrize(("way", "said"), REFUSED)
def test_gradients_of_another_scale_are_refused_in_one_line(way, said, mode):
    with pytest.raises(UserError, match=said):
        trained(way, mode, **ON)


@pytest.mark.parametrize("way", ["backward", "assigned"])
def test_a_mode_without_a_loss_scale_takes_gradients_from_anywhere(way):
    weight, counted = trained(way, "amp_bf16", **ON)
    exact, _ = trained("manual", "fp32", **ON)
    torch.testing.assert_close(weight, exact, rtol=0.05, atol=0.02)
    assert counted == BATCHES


@pytest.mark.parametrize(
    ("mode", "made"), [("amp", torch.float32), ("bf16_true", torch.bfloat16), ("fp16_true", torch.float16)]
)
def test_a_module_is_made_in_the_format(mode, made):
    trainer = silent_trainer(plugins=mpx.Precision(mode), **ON)
    with trainer.init_module():
        layer = torch.nn.Linear(4, 2)
    assert (layer.weight.dtype, layer.weight.device.type) == (made, "cuda")
    trainer.fit(module := Configured(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
    assert module.layer.weight.dtype == module.mean.dtype == made
