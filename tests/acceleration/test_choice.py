"""What is chosen of CUDA graphs and torch.compile, and the words for it."""

import pytest

from mpx.acceleration.choice import SEARCH_FROM, Facts, choose
from mpx.errors import UserError

GPU, LONG = Facts(cuda=True, steps=400), Facts(cuda=True, steps=SEARCH_FROM)


def test_short_run_on_a_gpu():
    choice = choose("auto", "auto", "auto", "auto", "auto", GPU)
    assert (choice.cuda_graphs, choice.compile) == (True, "off")
    assert choice.undecided
    assert choice.line() == (
        "speed: CUDA graphs (the whole step repeats); not compiled yet (the first steps are timed, to see "
        "whether it pays); "
        "channels_last (cuDNN's Tensor Core and batch norm kernels read it)"
    )


def test_long_run_on_a_gpu():
    choice = choose("auto", "auto", "auto", "auto", "auto", LONG)
    assert (choice.cuda_graphs, choice.compile) == (True, "off")
    assert choice.benchmark
    assert choice.undecided
    assert "; cuDNN's algorithms timed (1,000 steps, pays from about 1,000); channels_last (" in choice.line()


@pytest.mark.parametrize("facts", [GPU, LONG])
def test_plain(facts):
    choice = choose("plain", "auto", "auto", "auto", "auto", facts)
    assert (choice.cuda_graphs, choice.compile) == (False, "off")
    assert {choice.why[name] for name in ("cuda_graphs", "compile", "benchmark")} == {"speed=plain"}
    assert choice.channels_last  # a GPU's layout is no matter of choice


def test_each_by_hand_wins_over_speed():
    choice = choose("plain", "default", True, True, True, GPU).with_loader("workers", "data.loader=workers")
    chosen = dict.fromkeys(("cuda_graphs", "benchmark", "channels_last"), True)
    chosen |= {"compile": "default", "loader": "workers"}
    why = {name: f"trainer.{name}={str(value).lower()}" for name, value in chosen.items()}
    assert choice.record() == chosen | {"why": why | {"loader": "data.loader=workers"}}
    assert choose("auto", "off", False, "auto", "auto", LONG).record()["compile"] == "off"


def test_on_a_cpu_nothing_is_chosen_and_compiling_can_be():
    cpu = Facts(
        cuda=False,
        steps=SEARCH_FROM,
        against_graphs="no CUDA device",
        against_channels_last="no convolutions of images",
    )
    assert choose("auto", "auto", "auto", "auto", "auto", cpu).line() == (
        "speed: not compiled (on a CPU it rarely pays)"
    )
    assert choose("auto", "default", "auto", "auto", "auto", cpu).compile == "default"


def test_what_stands_in_the_way_is_said_or_refused():
    facts = Facts(cuda=True, steps=SEARCH_FROM, against_graphs="G", against_compiling="C")
    why = choose("auto", "auto", "auto", "auto", "auto", facts).why
    assert (why["cuda_graphs"], why["compile"]) == ("G", "C")
    with pytest.raises(
        UserError, match=r"trainer.compile=default is not possible: C. Use trainer.compile=off."
    ):
        choose("auto", "default", "auto", "auto", "auto", facts)
    with pytest.raises(UserError, match=r"trainer.cuda_graphs=true is not possible: G. Use .*_graphs=auto."):
        choose("auto", "auto", True, "auto", "auto", facts)


@pytest.mark.parametrize(("filters", "expected"), [(500 * 64, True), (500 * 64 + 1, False)])
def test_layout_on_a_cpu_by_what_has_to_be_rearranged(filters, expected):
    cpu = Facts(cuda=False, steps=400, filters=filters, pixels=64)
    choice = choose("auto", "auto", "auto", "auto", "auto", cpu)
    assert choice.channels_last is expected
    assert choice.why["channels_last"] == (
        f"{filters:,} filter weights, pays up to about 32,000 at this batch size"
    )
    assert choose("plain", "auto", "auto", "auto", "auto", cpu).why["channels_last"] == "speed=plain"
