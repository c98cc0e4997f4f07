"""What stands in the way of CUDA graphs and of compiling, as seen from a whole configuration."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from mpx.acceleration import decide as rules
from mpx.data.spec import Spec
from mpx.precision.modes import MODES, emulated
from mpx.precision.plugin import ModePrecision
from mpx.settings.choices import CONF

IMAGE = Spec("image", (1, 8, 8), 10)


def decide(*overrides, model=None, spec=IMAGE, steps=20_000, cuda=True):
    """As `mpx.training.assemble` asks, on a machine that has, or seems to have, a CUDA device."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", list(overrides))
    mode, here = MODES[cfg.precision.mode], torch.device("cuda" if cuda else "cpu")
    emulate = cfg.precision.emulate == "always" if cuda else emulated(mode, here, cfg.precision.emulate)
    return rules.decide(
        cfg,
        ModePrecision(mode, here, emulate=emulate),
        model or nn.Sequential(nn.Conv2d(1, 1, 1)),
        spec,
        steps,
    )


@pytest.mark.parametrize(
    "words", [[], ["sparsity=2of4", "sparsity.recipe=sr_ste"]], ids=["dense", "masks that move"]
)
def test_a_long_run_of_a_convolutional_network(words):
    choice = decide("precision=amp", *words)
    assert (choice.cuda_graphs, choice.compile, choice.benchmark, choice.undecided) == (
        True,
        "off",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["trainer.compile=reduce-overhead"], "trainer.compile=reduce-overhead makes its own"),
        (["trainer.accumulate_grad_batches=2"], "trainer.accumulate_grad_batches is above 1, so that not all "
        "batches do the same"),
        (["precision=amp", "precision.emulate=always"], "precision=amp is emulated here, operation by operation"),
    ],
)  # fmt: skip
def test_no_graphs(overrides, reason):
    choice = decide(*overrides)
    assert (choice.cuda_graphs, choice.why["cuda_graphs"]) == (False, reason)


FP32 = "FP32 products take most of a step, and the compiler does not shorten them"


@pytest.mark.parametrize(
    ("precision", "model", "reason"),
    [
        ("amp", nn.LSTM(2, 2), "cuDNN computes the recurrent layers, not the compiler"),
        ("o2", None, "precision=o2 copies the weights in each step"),
        ("fp32", None, FP32),
        ("tf32", None, FP32.replace("FP32", "TF32")),
    ],
)
def test_graphs_but_not_compiled(precision, model, reason):
    choice = decide(f"precision={precision}", model=model)
    assert (choice.cuda_graphs, choice.compile, choice.why["compile"]) == (True, "off", reason)


@pytest.mark.parametrize(("vocab_size", "undecided"), [(15_625, True), (15_624, False)])
def test_a_recurrent_language_model_is_compiled_where_the_loss_takes_long(vocab_size, undecided):
    spec = Spec("lm", (8,), vocab_size, vocab_size=vocab_size)
    choice = decide("precision=amp_bf16", "data.batch_size=64", model=nn.LSTM(2, 2), spec=spec)
    assert choice.undecided is undecided
    assert choice.why["compile"].startswith(
        "the first steps are timed" if undecided else "cuDNN computes the recurrent layers"
    )


class Flattening(nn.Module):
    """As many write it: `view` needs the numbers of an image in one order, `flatten` takes any."""

    def __init__(self, how):
        super().__init__()
        self.how, self.conv, self.norm, self.fc = (
            how,
            nn.Conv2d(1, 2, 3),
            nn.BatchNorm2d(2),
            nn.Linear(72, 10),
        )

    def forward(self, x):
        x = self.norm(self.conv(x))
        return self.fc(x.view(len(x), -1) if self.how == "view" else x.flatten(1))


@pytest.mark.parametrize(
    ("precision", "how", "expected"),
    [("amp", "flatten", True), ("amp", "view", False), ("fp32", "flatten", True), ("fp32", "view", False)],
)
def test_layout_on_a_gpu(precision, how, expected):
    assert (
        decide(f"precision={precision}", "data.batch_size=100000", model=Flattening(how)).channels_last
        is expected
    )
