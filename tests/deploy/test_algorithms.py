"""The search for cuSPARSELt's algorithm survives a child that loses CUDA, hangs or cannot start. tests/gpu
has the real library.
"""

import sys

import pytest

from mpx.deploy import algorithms
from mpx.deploy.algorithms import Problem

PROBLEM = Problem("float16", "float16", 32, 64, 16, bias=True, scaled=False, transposed=True)
CHILD = """
import json, sys, time
for line in sys.stdin:
    wish = json.loads(line)
    open({log!r}, "a").write(f"{{wish['first']}} ")
    for number in range(wish["first"], 5):
        print(json.dumps({{"trying": number}}), flush=True)
        {event}
        print(json.dumps({{"id": number, "ms": [4, 3, 1, 2, 5][number]}}), flush=True)
    print(json.dumps({{"end": True}}), flush=True)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """child(event): the next searches' child does `event` at each algorithm. Returns the file of the first
    ids it was asked for.
    """
    monkeypatch.setattr(algorithms, "_found", {})
    log = tmp_path / "log"

    def made(event):
        monkeypatch.setattr(
            algorithms, "CHILD", (sys.executable, "-c", CHILD.format(log=str(log), event=event))
        )
        return log

    yield made
    algorithms.stop()


def test_the_fastest_is_searched_once(child):
    log = child("pass")
    assert [algorithms.fastest(PROBLEM), algorithms.fastest(PROBLEM)] == [2, 2]
    assert log.read_text() == "0 "
    assert algorithms._child is not None
    algorithms.stop()
    algorithms.stop()
    assert algorithms._child is None


def test_an_algorithm_that_ends_the_child_is_left_out(child):
    log = child("if number == 2: sys.exit()")
    assert algorithms.fastest(PROBLEM) == 3
    assert log.read_text() == "0 3 "


def test_a_child_that_hangs_is_ended(child, monkeypatch):
    monkeypatch.setattr(algorithms, "MAX_CHILD_S", 2.0)
    log = child("if number == 2: time.sleep(60)")
    assert algorithms.fastest(PROBLEM) == 3
    assert log.read_text() == "0 3 "


def test_no_algorithm_works(child):
    log = child("sys.exit()")
    with pytest.raises(RuntimeError, match="no algorithm that works"):
        algorithms.fastest(PROBLEM)
    assert log.read_text() == "0 1 2 3 "
