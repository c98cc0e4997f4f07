"""What stands in the way of CUDA graphs and of compiling, as seen from a whole configuration."""


import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from mpx.acceleration import decide as rules
from mpx.precision.modes import MODES, emulated
from mpx.precision.plugin import ModePrecision
from mpx.settings.extras import CONF
from mpx.spec import Spec

IMAGE = Spec("image", (1, 8, 8), 10)


def decide(*overrides, model=None, spec=IMAGE, steps=20_000, cuda=True):
    """As `mpx.training.assemble` asks, on a machine that has, or seems to have, a CUDA device."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", list(overrides))
    mode, here = MODES[cfg.precision.mode], torch.device("cuda" if cuda else "cpu")
    emulate = cfg.precision.emulate == "always" if cuda else emulated(mode, here, cfg.precision.emulate)
    return rules.decide(cfg, ModePrecision(mode, here, emulate=emulate), model or nn.Sequential(nn.Conv2d(1, 1, 1)), spec, steps)


@pytest.mark.parametrize("words", [[], ["sparsity=2of4", "sparsity.recipe=sr_ste"]], ids=["dense", "masks that move"])
def test_a_long_run_of_a_convolutional_network(words):
    choice = decide("precision=amp", *words)
    assert (choice.cuda_graphs, choice.compile, choice.benchmark, choice.undecided) == (True, "off", True, True)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["trainer.compile=reduce-overhead"], "trainer.compile=reduce-overhead makes its own"),
        (["trainer.accumulate_grad_batches=2"], "trainer.accumulate_grad_batches is above 1, so that not all batches do the same"),
        (["precision=amp", "precision.emulate=always"], "precision=amp is emulated here, operation by operation"),
    ],
)
def test_no_graphs(overrides, reason):
    choice = decide(*overrides)
    assert (choice.cuda_graphs, choice.why["cuda_graphs"]) == (False, reason)


@pytest.mark.parametrize(
    ("overrides", "model", "reason"),
    [
        (["precision=amp"], nn.LSTM(2, 2), "recurrent layers are cuDNN's, not the compiler's"),
        (["precision=o2"], None, "precision=o2 replaces weights as it goes"),
        (["precision=fp32"], None, "FP32 products take most of a step, and the compiler does not shorten them"),
        (["precision=tf32"], None, "TF32 products take most of a step, and the compiler does not shorten them"),
    ],
)
def test_graphs_but_not_compiled(overrides, model, reason):
    choice = decide(*overrides, model=model)
    assert (choice.cuda_graphs, choice.compile, choice.why["compile"]) == (True, "off", reason)


@pytest.mark.parametrize(("vocab_size", "undecided"), [(15_625, True), (15_624, False)])
def test_a_recurrent_language_model_is_compiled_where_the_loss_takes_long(vocab_size, undecided):
    spec = Spec("lm", (8,), vocab_size, vocab_size=vocab_size)
    choice = decide("precision=amp_bf16", "data.batch_size=64", model=nn.LSTM(2, 2), spec=spec)
    assert choice.undecided is undecided
    assert choice.why["compile"].startswith("the first steps are timed" if undecided else "recurrent layers are cuDNN's")


class Flattening(nn.Module):
    """As many write it: `view` needs the numbers of an image in one order, `flatten` takes any."""

    def __init__(self, how):
        super().__init__()
        self.how, self.conv, self.norm, self.fc = how, nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(72, 10)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return self.fc(x.view(len(x), -1) if self.how == "view" else x.flatten(1))


@pytest.mark.parametrize(("overrides", "most"), [([], "2,048,000"), (["data.crop=6"], "1,152,000")])
def test_layout_on_a_cpu(overrides, most):
    choice = decide(*overrides, model=Flattening("flatten"), cuda=False)
    assert (choice.channels_last, choice.why["channels_last"]) == (
        True,
        f"18 filter weights, pays up to about {most} at this batch size",
    )


@pytest.mark.parametrize(
    ("overrides", "model", "reason"),
    [
        ([], Flattening("view"), "the model cannot take it (view size is not compatible with input tensor's size and stride"),
        ([], nn.Linear(8, 8), "no convolutions of images"),
        (
            ["data.batch_size=1"],
            nn.Sequential(nn.Conv2d(1, 300, 8), nn.Conv2d(300, 300, 1)),
            "109,200 filter weights, pays up to about 32,000",
        ),
        (["data.batch_size=2049"], Flattening("flatten"), "batch norm would sum 131,136 values of a channel in FP32 one by one"),
        (["speed=plain"], Flattening("flatten"), "speed=plain"),
    ],
)
def test_a_layout_that_is_left_alone(overrides, model, reason):
    choice = decide(*overrides, model=model, cuda=False)
    assert not choice.channels_last
    assert choice.why["channels_last"].startswith(reason)


@pytest.mark.parametrize(
    ("precision", "how", "expected"),
    [("amp", "flatten", True), ("amp", "view", False), ("fp32", "flatten", True), ("fp32", "view", False)],
)
def test_layout_on_a_gpu(precision, how, expected):
    assert decide(f"precision={precision}", "data.batch_size=100000", model=Flattening(how)).channels_last is expected


def test_batch_norm_sums_as_many_values_as_it_may_accurately():
    x = torch.randn(1, 4, 128, 1024, generator=torch.Generator().manual_seed(0)) * 2 + 3
    assert x[:, 0].numel() == rules.MAX_SUMMED
    laid_out = x.contiguous(memory_format=torch.channels_last)
    variance = torch.native_batch_norm(laid_out, None, None, None, None, True, 0.1, 0.0)[2].double() ** -2
    assert torch.allclose(variance, x.double().var((0, 2, 3), unbiased=False), rtol=1e-4)
