"""What a comparison prints."""

import re

import pytest
from made_runs import compared, made, seeds

from mpx.render.comparison_tables import MAX_LEFT_OUT, print_comparison

SPARSE = {"density": 0.5, "skipped_steps": 3, "optimizer_steps": 97}


@pytest.fixture
def printed(capsys):
    def show(runs, left_out=()):
        print_comparison(compared(runs, left_out=left_out))
        return capsys.readouterr().out

    return show


def test_every_figure_is_there_and_fits_120_columns(printed):
    runs = seeds("fp32-dense trainer.max_epochs=9", [0.950, 0.951, 0.952])
    runs += seeds(
        "amp_bf16-2of4 trainer.max_epochs=9", [0.950, 0.951, 0.953], [31000, 31500, 31900], **SPARSE
    )
    runs += [
        *seeds("o3-dense trainer.max_epochs=9", [0.7, 0.9]),
        made("o3-dense trainer.max_epochs=9", 2, status="diverged", metrics={}),
    ]
    out = printed(runs)
    assert max(len(line) for line in out.splitlines()) <= 120
    words = " ".join(out.split())
    assert "resnet18 on cifar10, trainer.max_epochs=9" in words
    assert "fp32-dense 3 0.9510 ± 0.0010 – control" in words
    assert "amp_bf16-2of4 3 0.9513 ± 0.0015 +0.0003 (−0.0011 to +0.0018) no loss" in words
    assert "loss, 1 of 3" in words
    assert "31,467 ± 451 31.44× (30.32 to 32.55) 2.50 60.0 (1.00×) 3.0 0.500" in words
    assert "BF16 with 2:4 trains 31.44 × as fast as FP32 at no loss of accuracy (3 seeds)." in words
    assert "left out" not in words


def test_a_shared_device_shows_its_rate_with_a_mark_and_columns_without_figures_go(printed):
    runs = [
        *seeds("fp32-dense", [0.95, 0.951], exclusive=None),
        *seeds("amp-dense", [0.95, 0.951], exclusive=None, emulated=True),
    ]
    words = " ".join(printed(runs).split())
    assert "0.9505 ± 0.0007 – control – 1,000 ± 1 (shared) 2.50" in words
    assert "no loss 0.022 – 2.50" in words
    assert "skipped" not in words  # all zero
    assert "used the device; samples/s marked (shared) and times are as measured" in words
    assert "speed-up" not in words
    assert "diverged" not in words
    assert "density" not in words


def test_what_was_left_out_is_listed(printed):
    left_out = [(f"amp/seed{n}", "failed: [out of] memory") for n in range(MAX_LEFT_OUT + 5)]
    out = printed([made()], left_out)
    assert f"{MAX_LEFT_OUT + 5} left out:" in out
    assert "· amp/seed0: failed: [out of] memory" in out
    assert "· and 5 more" in out


def test_a_narrow_terminal_cuts_no_figure_and_every_part_of_a_table_names_the_settings(printed, monkeypatch):
    runs = seeds("fp32-dense", [0.950, 0.951, 0.952])
    runs += seeds("amp_bf16-2of4", [0.950, 0.951, 0.953], [31000, 31500, 31900], **SPARSE)
    runs.append(made("amp_bf16-2of4", 3, status="diverged", metrics={}))
    figures = [
        "0.9510 ± 0.0010",
        "+0.0003 (−0.0011 to +0.0018)",
        "31,467 ± 451",
        "31.44× (30.32 to 32.55)",
        "60.0 (1.00×)",
        "0.500",
    ]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # so that rich takes the width of COLUMNS
    parts = []
    for width in (60, 80, 100, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in printed(runs).splitlines()]
        assert max(map(len, lines)) <= width
        assert [figure for figure in figures if not any(figure in line for line in lines)] == []
        heads = [line for line in lines if line.startswith(" setting ")]
        assert sum(line.startswith(" amp_bf16-2of4 ") for line in lines) == len(heads)
        parts.append(len(heads))
    assert parts[0] > parts[-1]
