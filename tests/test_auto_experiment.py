"""experiments/auto: wall times of lengths that were not run come from runs of the same choice; a trial runs
at a tiny size.
"""

import pytest
from experiment import script

from mpx.precision.modes import cpu_has_bf16

auto = script("auto/run.py")


def row(setting, steps, wall_s, rate, *, compiled):
    """Of ResNet-50 in batches of 256, as in results.csv."""
    made = {"model": "resnet50", "setting": setting, "steps": steps, "wall_s": wall_s, "steps_run": 400}
    made |= {"ran_s": 50.0, "samples_per_s": rate, "compiled": compiled, "from_step": 16 if compiled else ""}
    made |= {"why": "300 batches of 50 ms", "note": "", "batch": 256}
    made |= {"device": "a GPU", "torch": "2.11", "cores": 16}
    return {key: str(value) for key, value in made.items()}


ROWS = [
    row("off", 30_000, 1_510, 5_120, compiled=False),  # 10 s and 50 ms a step
    row("default", 30_000, 1_240, 6_400, compiled=True),  # 40 s and 40 ms
    row("auto", 3_000, 162, 6_400, compiled=True),  # 42 s and 40 ms
]


def test_lengths_that_were_not_run():
    """A shorter run than one that auto compiles may be compiled or not."""
    lines = auto.card(ROWS)["walls"].splitlines()
    assert "| ResNet-50 | 300 | 25.0 | 52.0 | – | – | – | not measured |" in lines
    assert "| ResNet-50 | 3,000 | 160.0 | 160.0 | 162.0 | yes | +2.0 | **held** |" in lines
    assert "| ResNet-50 | 30,000 | 1,510.0 | 1,240.0 | 1,242.0 | yes | +2.0 | **held** |" in lines


@pytest.mark.parametrize(
    ("wall_s", "words"), [(30.0, "no | +5.0 | **held**"), (30.1, "no | +5.1 | not held")]
)
def test_the_bound(wall_s, words):
    card = auto.card([*ROWS, row("auto", 300, wall_s, 5_120, compiled=False)])["walls"]
    assert f"| ResNet-50 | 300 | 25.0 | 52.0 | {wall_s} | {words} |" in card


@pytest.mark.slow
def test_a_tiny_run_is_ended_once_its_speed_is_known(monkeypatch):
    monkeypatch.setattr(auto, "SETTLED", 0.0)
    found = auto.run("resnet18", "auto", 100_000, {}, tiny=True)
    assert found["note"] == ""
    assert 0 < found["steps_run"] < 100_000
    assert found["wall_s"] > found["ran_s"]
    emulated = "precision=amp_bf16 is emulated here, operation by operation"
    assert found["why"] == ("on a CPU it rarely pays" if cpu_has_bf16() else emulated)
