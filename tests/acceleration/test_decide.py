"""What is chosen of CUDA graphs, torch.compile, cuDNN's search and channels_last, and the words for it."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from mpx.acceleration import decide as rules
from mpx.data.spec import Spec
from mpx.errors import UserError
from mpx.precision.modes import MODES, emulated
from mpx.precision.plugin import ModePrecision
from mpx.settings.choices import CONF

IMAGE = Spec("image", (1, 8, 8), 10)


def decide(*overrides, model=None, spec=IMAGE, steps=20_000, lengths=1, cuda=True):
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
        lengths,
    )


def test_short_run_on_a_gpu():
    choice = decide("precision=amp", steps=400)
    assert (choice.cuda_graphs, choice.compile, choice.undecided, choice.benchmark) == (
        True,
        "off",
        True,
        False,
    )
    assert choice.line() == (
        "speed: CUDA graphs (the whole step repeats); not compiled yet (the first steps are timed, to see "
        "whether it pays); "
        "channels_last (cuDNN's Tensor Core and batch norm kernels read it)"
    )


def test_long_run_on_a_gpu():
    choice = decide("precision=amp", "sparsity=2of4", "sparsity.recipe=sr_ste", steps=1_000)
    assert (choice.cuda_graphs, choice.benchmark, choice.undecided) == (True, True, True)
    assert "; cuDNN's algorithms timed (1,000 steps, pays from about 1,000); channels_last (" in choice.line()


def test_plain():
    choice = decide("precision=amp", "speed=plain")
    assert (choice.cuda_graphs, choice.compile, choice.benchmark) == (False, "off", False)
    assert {choice.why[name] for name in ("cuda_graphs", "compile", "benchmark")} == {"speed=plain"}
    assert choice.channels_last  # a GPU's layout is no matter of choice


def test_each_by_hand_wins_over_speed():
    chosen = {"cuda_graphs": True, "compile": "default", "benchmark": True, "channels_last": True}
    words = [f"trainer.{name}={str(value).lower()}" for name, value in chosen.items()]
    choice = decide("speed=plain", *words).with_loader("workers", "data.loader=workers")
    why = dict(zip(chosen, words, strict=True)) | {"loader": "data.loader=workers"}
    assert choice.record() == chosen | {"loader": "workers", "why": why}
    assert decide("trainer.compile=off", "trainer.cuda_graphs=false").compile == "off"


def test_on_a_cpu_nothing_is_chosen_and_compiling_can_be():
    on_cpu = {"model": nn.Linear(64, 10), "cuda": False}
    line = decide("precision=fp32", **on_cpu).line()
    assert line == "speed: not compiled (on a CPU it rarely pays)"
    assert decide("precision=fp32", "trainer.compile=default", **on_cpu).compile == "default"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["precision=amp", "precision.emulate=always", "trainer.compile=default"],
            r"trainer.compile=default is not possible: precision=amp is emulated .* Use trainer.compile=off.",
        ),
        (
            ["trainer.accumulate_grad_batches=2", "trainer.cuda_graphs=true"],
            r"trainer.cuda_graphs=true is not possible: .* Use .*_graphs=auto.",
        ),
    ],
)
def test_what_cannot_be_met_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        decide(*words)


@pytest.mark.parametrize(("filters", "expected"), [(500 * 64, True), (500 * 64 + 1, False)])
def test_layout_on_a_cpu_by_what_has_to_be_rearranged(filters, expected):
    few = {"model": nn.Conv2d(1, filters, 1), "cuda": False}
    choice = decide("precision=fp32", "data.batch_size=1", **few)
    assert choice.channels_last is expected
    assert choice.why["channels_last"] == (
        f"{filters:,} filter weights, pays up to about 32,000 at this batch size"
    )
    assert decide("precision=fp32", "speed=plain", **few).why["channels_last"] == "speed=plain"


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


def test_texts_of_several_lengths_are_recorded_but_not_compiled():
    choice = decide("precision=amp", lengths=6)
    assert (choice.cuda_graphs, choice.compile) == (True, "off")
    assert choice.why["compile"] == "texts of 6 lengths would be compiled 6 times"
    assert decide("precision=amp", "trainer.compile=default", lengths=6).compile == "default"


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
