"""The table at the end of a run."""

from pathlib import Path

import pytest
from made_runs import record

from mpx.render.run import print_run


def test_a_slow_run_of_a_small_model_keeps_its_digits(capsys):
    """0.31 samples/s are not 0, and 2.4 MiB are not 0.00 GiB."""
    made = record(speed=0.3104)
    made |= {"metric": {"name": "test/accuracy", "goal": "max"}}
    made["config"]["sparsity"] = {}
    made["speed"]["mfu"] = None
    made["memory"]["peak_allocated_gib"] = 0.00234
    made["speed"]["time_to_train_s"] = 0.0312
    made["precision"] |= {"gradient_overflow_fraction": 0.0, "gradient_underflow_fraction": 3.4e-7}
    made["sparsity"] |= {"pattern": "dense", "layers": []}
    folder = f"outputs/s/net-{'x' * 160}/seed0"
    print_run(made, Path(folder))
    out = capsys.readouterr().out
    assert "│ 0.310 samples/s " in out
    assert "│ 0.0023 GiB on the device " in out
    assert "│ 0.031 s " in out
    assert "│ 0.000034% vanish, 0.000% overflow; " in out
    assert out.endswith(f"┘\nfolder {folder}\n")


@pytest.mark.parametrize(
    ("speed", "said"),
    [
        ({"exclusive": False, "exclusive_reason": "1 other process"}, "samples/s (shared: 1 other process)"),
        ({"cpu_used_by_others": 0.53}, "samples/s, while other programs used 53% of the CPU"),
        ({"cpu_used_by_others": 0.04}, None),
        ({"cpu_used_by_others": None}, None),
    ],
)
def test_a_speed_beside_other_programs_is_marked(speed, said, capsys):
    made = record() | {"metric": {"name": "test/accuracy", "goal": "max"}}
    made["config"]["sparsity"] = {}
    made["precision"] |= {"gradient_overflow_fraction": 0.0}
    made["sparsity"] |= {"pattern": "dense", "layers": []}
    made["speed"] |= {"mfu": None} | speed
    print_run(made, Path("outputs/s/net/seed0"))
    out = capsys.readouterr().out
    assert ("shared" in out or "other programs" in out) is (said is not None)
    assert said is None or said in " ".join(out.split())
