"""What profile=true prints and writes, from a made-up record of a GPU."""

import csv
import errno
import io

import pytest

from mpx.render.profile import MAX_OPERATIONS, report_profile
from mpx.render.run_figures import report_sensitivity

ROW = {
    "operation": "mm", "calls": 4, "ms": 2.0, "share": 0.5, "format": "fp16", "tensor_cores": True, "gflop": 1.0, "mib": 2.0,
    "roofline": 0.625, "limit": "arithmetic", "kernels": ["nvjet_hsh", "splitKreduce"],
}  # fmt: skip
SMALL = ROW | {"operation": "relu", "format": None, "tensor_cores": None, "roofline": None, "limit": None, "roofline_reason": "who knows"}
PROFILE = {
    "bound": "arithmetic", "sentence": "Held back by arithmetic: 50% …; try something.", "steps": "5 steps replayed from a CUDA graph",
    "rows": "operations", "emulated": False, "step_ms": 4.25, "busy_ms": 4.0, "waited_ms": 0.125, "launches": 321,
    "idle_fraction": 1 / 17, "longest_gap_ms": 0.0625, "trace": "trace.json.gz",
    "cpu_busy": None, "compiled": False,
    "limits": "NVIDIA H200 datasheet, SXM", "limits_reason": None,
    "limit_gb_per_s": 4800.0, "limit_tflops_per_s": {"fp16": 989.0}, "operations": [ROW] + [SMALL] * (MAX_OPERATIONS + 2),
    "layers": [{"operation": "mm", "format": "fp16", "calls": 2, "flops_per_byte": of, "tflops_per_s": 200.0} for of in (50.0, 400.0)],
}  # fmt: skip

LAYER = {
    "name": "fc", "type": "Linear", "shape": [8, 16], "kept_magnitude": 0.75, "dense_loss": 1.0, "loss": 1.5, "loss_change": 0.5
}  # fmt: skip


@pytest.fixture
def printed(tmp_path, capsys):
    report_profile(PROFILE, tmp_path)
    return capsys.readouterr().out


def test_the_table(printed):
    lines = printed.splitlines()
    assert lines[0].startswith("where a step's time goes (5 steps replayed from a CUDA graph)")
    (product,) = [line for line in lines if "│ mm " in line]
    assert [cell.strip() for cell in product.strip("│ ").split("│")] == ["mm", "4", "2.000", "50.0%", "fp16", "yes", "62%", "arithmetic"]
    assert len([line for line in lines if "│ relu " in line]) == MAX_OPERATIONS - 1


def test_the_lines_below(printed):
    assert "and 3 more; profile.csv lists them all" in printed
    assert (
        "a step takes 4.25 ms, of which the device computes 4 ms, 321 kernels and copies "
        "(idle for 6%, when traced 0.0625 ms at the longest); waiting for the batch takes 0.125 ms" in printed
    )
    assert "limits: NVIDIA H200 datasheet, SXM" in printed
    assert printed.splitlines()[-1] == PROFILE["sentence"]


def test_the_file(printed, tmp_path):
    with open(tmp_path / "profile.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(PROFILE["operations"])
    assert (rows[0]["kernels"], rows[0]["roofline"], rows[0]["roofline_reason"]) == ("nvjet_hsh; splitKreduce", "0.625", "")
    assert (rows[1]["roofline"], rows[1]["roofline_reason"]) == ("", "who knows")


def test_emulated_and_of_unknown_limits(tmp_path, capsys):
    report_profile(PROFILE | {"emulated": True, "limits": None, "limits_reason": "no figures", "launches": None}, tmp_path)
    out = capsys.readouterr().out
    assert "emulated: not the speed of this format" in " ".join(out.split())
    assert "a step takes 4.25 ms, its operations 4 ms when timed one by one; waiting" in out
    assert "limits unknown: no figures" in out


def test_a_compiled_step_on_a_cpu_has_no_operations_to_add_up(tmp_path, capsys):
    report_profile(PROFILE | {"launches": None, "compiled": True}, tmp_path)
    assert "a step takes 4.25 ms, compiled; waiting for the batch takes 0.125 ms" in capsys.readouterr().out


def test_the_roofline_where_the_limits_are_known(printed, tmp_path, capsys):
    assert "roofline.png places" in printed
    assert (tmp_path / "roofline.png").stat().st_size > 10_000
    drawn = (tmp_path / "roofline.svg").read_text()
    report_profile(PROFILE | {"layers": PROFILE["layers"][:1]}, tmp_path)
    assert (tmp_path / "roofline.svg").read_text() != drawn  # each layer has its own point
    capsys.readouterr()
    (other := tmp_path / "other").mkdir()
    report_profile(PROFILE | {"limit_gb_per_s": None, "limit_tflops_per_s": {}}, other)
    assert "roofline.png" not in capsys.readouterr().out
    assert [path.name for path in other.iterdir()] == ["profile.csv"]


def test_what_caches_explain(tmp_path, capsys, printed):
    assert "caches" not in printed
    report_profile(PROFILE | {"operations": [ROW | {"roofline": 1.5}]}, tmp_path)
    assert "above 100% of the limit: the data came from caches" in capsys.readouterr().out


@pytest.mark.parametrize(("busy", "said"), [(0.05, False), (0.75, True)])
def test_a_cpu_that_others_use_is_said(tmp_path, capsys, busy, said):
    report_profile(PROFILE | {"cpu_busy": busy}, tmp_path)
    out = capsys.readouterr().out
    assert ("Other programs kept 75% of the CPU's cores busy: times are too long" in out) is said
    assert out.splitlines()[-1] == PROFILE["sentence"]


@pytest.mark.parametrize("write", [lambda folder: report_profile(PROFILE, folder), lambda folder: report_sensitivity([LAYER], folder)])
def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch, write):
    """It fails on the last byte of the content."""

    class Full(io.FileIO):
        def write(self, content):
            super().write(bytes(content)[:-1])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("io.open", lambda path, *mode, **how: io.TextIOWrapper(Full(path, "w")))  # of Path.write_text
    monkeypatch.setattr("builtins.open", lambda path, *mode, **how: Full(path, "w"))
    with pytest.raises(OSError, match="No space"):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []
