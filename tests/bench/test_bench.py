"""python -m mpx.bench: its table, its files, and its errors in one line."""

import csv
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from started import light, start

from mpx.bench import formats, gemm, triton
from mpx.bench.__main__ import main, run
from mpx.errors import UserError
from mpx.measure import timing
from mpx.measure.exclusive import CpuUse
from mpx.settings.fields import BENCHMARKS

FORMATS = ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"]
SMALL = ("what=formats", "accelerator=cpu", "size=64")


def bench(folder, *overrides, env=None):
    done = start(main, folder, *overrides, env=env)
    return SimpleNamespace(code=done.code, out=done.out, err=done.err, files=sorted(folder.rglob("*")))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """In a process of its own, as a user starts it. Lightning takes seconds to import, and measures nothing
    here.
    """
    folder = tmp_path_factory.mktemp("bench")
    program = (
        f"import runpy, sys; sys.argv[1:] = {list(SMALL)}\nrunpy.run_module('mpx.bench', "
        "run_name='__main__', alter_sys=True)\n"
        "assert not {'pytorch_lightning', 'transformers', 'torchvision'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(
        out=done.stdout, err=done.stderr, files=sorted(folder.rglob("*")), folder=folder / "outputs" / "bench"
    )


@pytest.fixture(scope="module")
def rows(ran):
    with open(ran.folder / "formats.csv", newline="") as file:
        return {row["format"]: row for row in csv.DictReader(file)}


def test_both_tables_show_every_format_at_120_columns(ran):
    for title in ("What each format can hold", "Products of 64² matrices on"):
        table = ran.out.split(title)[1].split("└")[0]
        first = [line.split("│")[1].strip() for line in table.splitlines() if line.startswith("│")]
        assert list(filter(None, first)) == FORMATS  # a long reason goes on in a second line
    assert max(len(line) for line in ran.out.splitlines()) <= 120
    assert ran.err.splitlines() == [f"measuring {name} …" for name in FORMATS]
    for fact in (
        "65504",
        "1.192e-07",
        "57344",
        "448",
        "CPUs have no TF32",
        "CPUs have no FP8 arithmetic",
        "int8: an integer format",
    ):
        assert fact in ran.out


def test_rows_are_formats_with_a_rate_or_a_reason(rows):
    assert list(rows) == FORMATS
    fp16, int8 = rows["fp16"], rows["int8"]
    assert (float(fp16["epsilon"]), float(fp16["largest"]), float(fp16["smallest_subnormal"])) == (
        2**-10,
        65504,
        2**-24,
    )
    assert (int8["bits"], int8["largest"], int8["epsilon"], int8["significant_digits"]) == (
        "8",
        "127",
        "",
        "",
    )
    for row in rows.values():
        assert bool(row["tflops_per_s"]) != bool(row["reason"])
        assert not row["tflops_per_s"] or 0 < float(row["tflops_per_s"]) < 100


MISTAKES = [
    (["what=format"], "what=format must be one of formats, gemm, blas"),
    (["size=100"], "size=100 must be a multiple of 16 from 32 to 32768, or auto. For example size=1024."),
    (["-m", "size=64,128"], "mpx.bench has no sweeps"),
    (["size=64,128"], "size=64,128 gives several values, and mpx.bench takes one. Start it once for each,"),
    (["output_dir=/proc/nowhere", "size=32"], "output_dir: cannot write /proc/nowhere (No such file"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=[" ".join(case[0]) for case in MISTAKES])
def test_mistake_is_one_line_and_writes_nothing(tmp_path, overrides, message):
    done = bench(tmp_path, *overrides)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
    assert done.files == []


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        (
            "gemm",
            (
                "Square products on",
                "CPUs have no FP8 arithmetic",
                "checked against float64",
            ),
        ),
        (
            "blas",
            (
                "BLAS on",
                "Arithmetic intensity",
                "│ axpy    │ fp32   │  0.167 │",
                "Share of the roof",
                "Roofs seen in this run",
            ),
        ),
        pytest.param(
            "conv",
            ("Convolutions of 4 images on", "oneDNN", "channels_last", "weight gradient"),
            marks=pytest.mark.slow,
        ),
        ("lstm", ("A two-layer LSTM over 16×32 tokens on", "forward + backward")),
        ("attention", ("Attention on", "causal counts half", "padding")),
        pytest.param(
            "triton",
            (
                "2:4 mask and pruned weight on",
                "PyTorch",
                "torch.compile",
                "– fp32 Triton: Triton's kernels need a CUDA device",
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_benchmark_prints_writes_and_draws(tmp_path, hurried, monkeypatch, capsys, what, shown):
    monkeypatch.setattr(triton, "MEASURED", ("fp32",))  # each is compiled
    run(what, "cpu", 32, str(tmp_path))
    printed = capsys.readouterr()
    assert not [line for line in printed.err.splitlines() if not line.startswith("measuring ")]
    assert all(text in printed.out for text in shown)
    assert max(len(line) for line in printed.out.splitlines() if not line.startswith("written to ")) <= 120
    assert sorted(path.name for path in (tmp_path / "bench").iterdir()) == [
        f"{what}.{end}" for end in ("csv", "json", "png", "svg")
    ]
    assert (tmp_path / "bench" / f"{what}.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "bench" / f"{what}.json").read_text())
    assert record["environment"]["torch"] == torch.__version__
    assert any(row["ms"] for row in record["rows"])
    assert all(
        bool(row["ms"]) != bool(row["reason"]) and set(row) == set(record["rows"][0])
        for row in record["rows"]
    )
    with open(tmp_path / "bench" / f"{what}.csv", newline="") as file:
        assert [float(row["ms"] or 0) for row in csv.DictReader(file)] == [
            row["ms"] or 0 for row in record["rows"]
        ]


@pytest.mark.slow
def test_a_run_is_held_against_what_was_measured_here(tmp_path, monkeypatch, train):
    """mpx.bench beside the runs gives the limit that a CPU has no vendor's figure for."""
    monkeypatch.setattr(timing, "SAMPLE_S", 1e-3)
    monkeypatch.setattr(CpuUse, "by_others", lambda self: 0.0)  # on a busy machine it would not count
    few = ("model=mlp", "precision=fp32", "trainer.max_epochs=1", "trainer.warmup_steps=2")
    unknown = train(*few).record["speed"]
    assert unknown["mfu"] is None
    assert "python -m mpx.bench what=gemm" in unknown["mfu_reason"]
    monkeypatch.setitem(gemm.SIZE, "cpu", 64)
    run("gemm", "cpu", "auto", str(tmp_path / "outputs"))
    ran = train(*few, "if_exists=overwrite")
    speed = ran.record["speed"]
    assert f"{speed['mfu']:.1%} of fp32 " in ran.out
    assert "measured here by mpx.bench" in speed["mfu_reference"]
    limit = max(
        row["tflops_per_s"] or 0
        for row in json.loads((tmp_path / "outputs/bench/gemm.json").read_text())["rows"]
        if row["format"] == "fp32"
    )
    assert speed["mfu"] == pytest.approx(speed["model_tflops_per_s"] / limit)


def test_nothing_heavy_is_imported_for_help_and_mistakes(tmp_path):
    printed = light("mpx.bench", tmp_path, ["--help"], ["--cfg", "job"], ["size=0"])
    assert all(f"\n{key}:" in printed for key in ("what", "accelerator", "size", "output_dir"))
    assert all(f" {what}: " in printed for what in BENCHMARKS)
    assert list(tmp_path.iterdir()) == []


ABOUT = {"device": "cuda", "exclusive": False, "exclusive_reason": "1 other process on the device"}
ABOUT |= {"environment": {"device": ["NVIDIA H200"], "cpu": "A CPU", "threads": 16}}
DONE = {
    "ms": 1.0,
    "tflops_per_s": 500.0,
    "gb_per_s": 3000.0,
    "relative_error": 1e-3,
    "samples": 5,
    "reason": None,
}


def of_formats():
    peak = {"peak_tflops_per_s": 989.5, "share_of_peak": 0.505, "note": None, "size": 8192}
    return [{"format": fmt, **formats.card(fmt), **DONE, **peak} for fmt in FORMATS]


def of_gemm():
    ways = {
        ("dense", "eager"): 400.0,
        ("dense", "graph"): 500.0,
        ("2of4", "eager"): 100.0,
        ("2of4", "graph"): 700.0,
    }
    return [
        {
            "format": fmt,
            "shape": shape,
            "rows": n,
            "columns": n,
            "inner": n,
            "pattern": pattern,
            "how": how,
        }
        | DONE
        | {"tflops_per_s": rate}
        for fmt in gemm.MEASURED
        for shape, n in (("square", 256), ("square", 8192), ("linear", 1024))
        for (pattern, how), rate in ways.items()
    ]


def of_triton():
    return [
        {"way": way, "format": fmt, "size": size} | DONE
        for way in triton.ways(torch.device("cpu"))
        for fmt in triton.MEASURED
        for size in (1024, 8192)
    ]


@pytest.mark.parametrize(
    ("benchmark", "make", "shown"),
    [
        (formats, of_formats, ("Products of 8192² matrices on NVIDIA H200", "50%")),
        (gemm, of_gemm, ("Square products on NVIDIA H200", "1024×1024×1024", "2:4 ÷ dense", "1.40")),
        (triton, of_triton, ("2:4 mask and pruned weight on NVIDIA H200", "torch.compile", "3,000")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tables_of_a_gpu_fit_and_are_drawn(capsys, benchmark, make, shown):
    """As a GPU would fill them, which no CPU can; someone else is on the device."""
    benchmark.show(ABOUT, make())
    printed = capsys.readouterr().out
    everywhere = (
        "Not alone on the device (1 other process on the device)",
        "Vendor's peaks: NVIDIA H200 datasheet, SXM.",
    )
    assert [text for text in (*shown, *everywhere) if text not in printed] == []
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 120
    # cut at the page's edge
    assert not [line for line in lines if line.startswith("│") and not line.endswith("│")]
    drawn = benchmark.plot(ABOUT, make())
    assert drawn
    assert drawn.png.startswith(b"\x89PNG")
    assert "NVIDIA H200" in drawn.svg
    assert "mathdefault" not in drawn.svg  # matplotlib's own labels, which are not drawn as numbers here


def test_nothing_measured_is_not_drawn():
    rows = [row | dict.fromkeys(DONE) | {"reason": "no"} for row in of_triton()]
    assert triton.plot(ABOUT, rows) is None


@pytest.mark.parametrize("at", ["mpx.bench.__main__.write_whole", "mpx.render.picture.write_whole"])
def test_a_disk_that_fills_up_does_not_cost_the_table(tmp_path, monkeypatch, capsys, at):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(at, full)
    with pytest.raises(UserError, match=r"output_dir: cannot write .*bench \(No space left on device\)"):
        run("blas", "cpu", 32, str(tmp_path))
    assert "GB/s" in capsys.readouterr().out
