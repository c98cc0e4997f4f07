"""What is chosen of CUDA graphs and torch.compile, and the words for it."""

import pytest

from mpx.errors import UserError
from mpx.speed.choice import PAYS_FROM, Facts, choose

GPU = Facts(cuda=True, steps=400)
LONG = Facts(cuda=True, steps=PAYS_FROM)


def test_short_run_on_a_gpu():
    choice = choose("auto", "auto", "auto", "auto", GPU)
    assert (choice.cuda_graphs, choice.compile) == (True, "off")
    assert choice.line() == ("speed: CUDA graphs (the whole step repeats); not compiled (pays from about 10,000 steps, this run has 400)")


def test_long_run_on_a_gpu():
    choice = choose("auto", "auto", "auto", "auto", LONG)
    assert (choice.cuda_graphs, choice.compile, choice.benchmark) == (True, "default", True)
    assert choice.line().endswith("; cuDNN's algorithms timed")


@pytest.mark.parametrize("facts", [GPU, LONG])
def test_plain(facts):
    choice = choose("plain", "auto", "auto", "auto", facts)
    assert (choice.cuda_graphs, choice.compile) == (False, "off")
    assert set(choice.why.values()) == {"speed=plain"}


def test_each_by_hand_wins_over_speed():
    assert choose("plain", "default", True, True, GPU).record() == {
        "cuda_graphs": True,
        "compile": "default",
        "benchmark": True,
        "why": {
            "cuda_graphs": "trainer.cuda_graphs=true",
            "compile": "trainer.compile=default",
            "benchmark": "trainer.benchmark=true",
        },
    }
    assert choose("auto", "off", False, "auto", LONG).record()["compile"] == "off"


def test_the_compilers_own_graphs_leave_no_room_for_others():
    choice = choose("auto", "reduce-overhead", "auto", "auto", GPU)
    assert (choice.cuda_graphs, choice.compile) == (False, "reduce-overhead")
    with pytest.raises(UserError, match=r"trainer.cuda_graphs=true is not possible: trainer.compile=reduce-overhead makes its own"):
        choose("auto", "reduce-overhead", True, "auto", GPU)


def test_on_a_cpu_nothing_is_chosen_and_compiling_can_be():
    cpu = Facts(cuda=False, steps=PAYS_FROM, against_graphs="no CUDA device")
    assert (
        choose("auto", "auto", "auto", "auto", cpu).line()
        == "speed: no CUDA graphs (no CUDA device); not compiled (on a CPU it rarely pays)"
    )
    assert choose("auto", "default", "auto", "auto", cpu).compile == "default"


def test_what_stands_in_the_way_is_said_or_refused():
    facts = Facts(cuda=True, steps=PAYS_FROM, against_graphs="G", against_compiling="C")
    why = choose("auto", "auto", "auto", "auto", facts).why
    assert (why["cuda_graphs"], why["compile"]) == ("G", "C")
    with pytest.raises(UserError, match=r"trainer.compile=default is not possible: C. Use trainer.compile=off."):
        choose("auto", "default", "auto", "auto", facts)
    with pytest.raises(UserError, match=r"trainer.cuda_graphs=true is not possible: G. Use trainer.cuda_graphs=auto."):
        choose("auto", "auto", True, "auto", facts)


def test_what_is_not_known_to_gain_is_done_when_asked_for():
    facts = Facts(cuda=True, steps=PAYS_FROM, loses_compiled="U", loses_recorded="R")
    why = choose("auto", "auto", "auto", "auto", facts).why
    assert (why["compile"], why["cuda_graphs"]) == ("U", "R")
    by_hand = choose("auto", "default", True, "auto", facts)
    assert (by_hand.compile, by_hand.cuda_graphs) == ("default", True)


def test_search_only_where_there_is_something_to_find():
    assert choose("auto", "auto", "auto", "auto", Facts(cuda=True, steps=10**6, against_search="no convolutions")).benchmark is False
    assert choose("auto", "auto", "auto", "auto", GPU).benchmark is False
    assert choose("auto", "auto", "auto", True, GPU).benchmark is True
