"""Benchmarks as a GPU would fill them in, which no CPU can: tables fit the page, 2:4 is compared with dense, pictures are drawn."""

import pytest

from mpx.bench.kernels import attention, conv, gemm, triton
from mpx.bench.show import attention as attention_report
from mpx.bench.show import blas as blas_report
from mpx.bench.show import conv as conv_report
from mpx.bench.show import copy as copy_report
from mpx.bench.show import gemm as gemm_report
from mpx.bench.show import triton as triton_report
from mpx.compare.words import rate
from mpx.measure.ceilings import Ceilings
from mpx.render.plots.picture import picture
from mpx.render.plots.rates import Curve, rates_figure

ABOUT = {"device": "cuda", "exclusive": False, "exclusive_reason": "1 other process on the device"}
ABOUT |= {"environment": {"device": ["NVIDIA H200"], "cpu": "A CPU", "threads": 16}}
DONE = {"ms": 1.0, "tflops_per_s": 500.0, "gb_per_s": 3000.0, "relative_error": 1e-3, "samples": 5}


def gemm_rows():
    rows = []
    for fmt in gemm.FORMATS:
        for shape, sizes in (("square", [(n, n, n) for n in (256, 1024, 4096, 8192)]), ("linear", gemm.BERT), ("batched", [(16, 16, 16)])):
            for rows_, columns, inner in sizes:
                for library, pattern, how, tflops in (
                    ("torch", "dense", "eager", 400.0), ("torch", "dense", "graph", 500.0),
                    ("cuSPARSELt", "2of4", "eager", 100.0), ("cuSPARSELt", "2of4", "graph", 700.0),
                ):  # fmt: skip
                    about = {"device": "cuda", "library": library, "format": fmt, "pattern": pattern, "how": how, "shape": shape}
                    about |= {"batch": 1, "rows": rows_, "columns": columns, "inner": inner}
                    rows.append(dict.fromkeys(gemm.COLUMNS) | about | DONE | {"tflops_per_s": tflops})
    cpu = {"device": "cpu", "library": "numpy", "format": "fp32", "pattern": "dense", "how": "eager", "batch": 1}
    rows += [
        dict.fromkeys(gemm.COLUMNS) | cpu | DONE | {"shape": shape, "rows": 512, "columns": 512, "inner": 512}
        for shape in ("square", "batched")
    ]
    return rows


def conv_rows():
    return [
        dict.fromkeys(conv.COLUMNS) | {"device": "cuda", "layer": layer.name, "direction": direction, "format": fmt, "layout": layout}
        | {"algorithm": algorithm, "batch": 128, "workspace_mib": 64.0} | DONE | {"ms": 2.0 if algorithm == "heuristic" else 1.5}
        for layer in conv.LAYERS for direction in conv.DIRECTIONS for fmt in conv.MEASURED for layout in conv.LAYOUTS
        for algorithm in ("heuristic", "autotuned")
    ]  # fmt: skip


def conv_rows_with_plans():
    """Of three plans per case one is wrong, the fastest needs workspace."""
    rows = conv_rows()
    case = dict.fromkeys(conv.COLUMNS) | {"device": "cuda", "layout": "channels_last", "batch": 128}
    plans = (
        {"algorithm": "engine 62", "plan": "eng62_k2=4_k13=0", "workspace_mib": 98.0} | DONE | {"ms": 1.25, "tflops_per_s": 640.0},
        {"algorithm": "engine 0", "plan": "eng0", "workspace_mib": 0.0} | DONE | {"ms": 40.0, "tflops_per_s": 20.0},
        {"algorithm": "engine 7", "plan": "eng7", "workspace_mib": 8192.0, "reason": "needs 8,192 MiB of workspace"},
    )
    return rows + [
        case | {"layer": layer.name, "direction": direction, "format": fmt} | plan
        for layer in conv.LAYERS for direction in conv.DIRECTIONS for fmt in conv.MEASURED for plan in plans
    ]  # fmt: skip


def attention_rows():
    shape = {"device": "cuda", "batch": 16, "heads": 16, "length": 2048, "head_size": 64}
    rows = [
        dict.fromkeys(attention.COLUMNS) | shape | {"direction": direction, "mask": mask, "format": fmt, "kernel": kernel} | DONE
        for direction in attention.DIRECTIONS for mask in attention.MASKS for fmt in attention.MEASURED for kernel in attention.KERNELS
    ]  # fmt: skip
    refused = {"reason": "Flash Attention does not support non-null attn_mask."} | dict.fromkeys(DONE)
    return [row | refused if (row["kernel"], row["mask"]) == ("flash", "padding") else row for row in rows]


def triton_rows():
    return [
        dict.fromkeys(triton.COLUMNS) | {"device": "cuda", "way": way, "format": fmt, "size": size, "compressed": compressed} | DONE
        for way in ("PyTorch", "torch.compile", "Triton") for fmt in triton.MEASURED for size in (1024, 8192)
        for compressed in (False, True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("report", "rows", "shown"),
    [
        (
            gemm_report,
            gemm_rows(),
            ("Square products on NVIDIA H200", "Square products on A CPU, 16 threads", "2:4 ÷ dense", "1.40", "takes 1.00 ms or more"),
        ),
        (conv_report, conv_rows(), ("Convolutions of 128 images on NVIDIA H200", "ten largest gains", "1.33", "│ NCHW          │")),
        (
            conv_report,
            conv_rows_with_plans(),
            ("fastest plan", "Each of cuDNN's algorithms by itself", "2 of 3", "engine 62", "engine 0", "1.250", "40.000"),
        ),
        (attention_report, attention_rows(), ("16×16 heads of 64, 2048 tokens", "cudnn", "flash fp32 padding", "non-null attn_mask")),
        (triton_report, triton_rows(), ("2:4 mask and pruned weight on NVIDIA H200", "torch.compile", "3,000")),
    ],
    ids=["gemm", "conv", "plans", "attention", "triton"],
)
def test_tables_of_a_gpu_fit_and_are_drawn(capsys, report, rows, shown):
    report.show(ABOUT, rows)
    printed = capsys.readouterr().out
    assert [text for text in (*shown, "Not alone on the device (1 other process on the device)") if text not in printed] == []
    assert max(len(line) for line in printed.splitlines()) <= 120
    assert not [line for line in printed.splitlines() if line.startswith("│") and not line.endswith("│")]  # cut at the page's edge
    made = report.plot(ABOUT, rows)
    assert made.reason is None
    assert made.png.startswith(b"\x89PNG")
    assert "NVIDIA H200" in made.svg
    assert "mathdefault" not in made.svg  # matplotlib's own labels, which are not drawn as numbers here


def test_of_many_plans_the_page_shows_the_fastest_and_the_picture_one_bar(capsys):
    rows = conv_rows_with_plans()
    best = conv_report.fastest(rows)
    assert len(best) == len(conv.LAYERS) * len(conv.DIRECTIONS) * len(conv.MEASURED)
    assert {(row["engine"], row["ms"], row["autotuned_ms"]) for row in best} == {("engine 62", 1.25, 1.5)}
    assert {(row["lean_engine"], row["lean_ms"]) for row in best} == {("engine 0", 40.0)}
    conv_report.show(ABOUT, rows)
    printed = capsys.readouterr().out
    assert "8,192 MiB" not in printed  # of a plan's failure only the CSV tells
    lines = [line for line in printed.splitlines() if "fastest plan" in line]
    assert len(lines) == len(conv.LAYERS) * len(conv.DIRECTIONS)
    made = conv_report.plot(ABOUT, rows)
    assert "fastest plan" in made.svg
    assert "engine" not in made.svg


def test_without_the_front_end_one_line_says_how_to_get_it(capsys):
    nothing = dict.fromkeys(conv.COLUMNS) | {"device": "cuda", "layout": "channels_last", "batch": 128}
    nothing |= {"algorithm": "each algorithm", "reason": "not measured: pip install nvidia-cudnn-frontend"}
    rows = conv_rows() + [nothing | {"layer": layer.name, "direction": "forward", "format": "fp16"} for layer in conv.LAYERS]
    conv_report.show(ABOUT, rows)
    printed = capsys.readouterr().out
    assert printed.count("pip install nvidia-cudnn-frontend") == 1
    assert "each of cuDNN's algorithms by itself: not measured" in printed
    assert "fastest plan" not in printed


@pytest.mark.parametrize(("busy", "said"), [(0.45, True), (0.02, False), (None, False)])
def test_a_busy_cpu_is_told_where_it_was_measured(capsys, busy, said):
    words = "Other work kept 45% of the CPU's cores busy when this began"
    gemm_report.show(ABOUT | {"cpu_busy": busy}, gemm_rows())
    assert (words in capsys.readouterr().out) == said
    triton_report.show(ABOUT | {"cpu_busy": busy}, triton_rows())
    assert words not in capsys.readouterr().out


def test_speed_up_of_2of4_is_over_dense_in_a_graph():
    found = gemm_report.linear_rows(gemm_rows())
    assert found[0]["layer"] == "32768×2048×512"
    assert found[0]["speed-up"] == pytest.approx(1.4)
    assert gemm_report.linear_rows([row for row in gemm_rows() if row["how"] == "eager"])[0]["speed-up"] is None


def test_nothing_measured_is_not_drawn():
    rows = [row | dict.fromkeys(DONE) | {"reason": "no"} for row in triton_rows()]
    made = triton_report.plot(ABOUT, rows)
    assert made.reason == "nothing was measured"


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.000312, "0.000312"), (0.0, "0"), (31.46, "31.5"), (1978.7, "1,979")])
def test_rates_read_for_people(value, text):
    assert rate(value) == text


@pytest.mark.parametrize(
    ("low", "high", "labels"), [(150.0, 700.0, {"200", "500"}), (0.01, 20.0, {"0.1", "1"}), (340.0, 5300.0, {"500", "1,000", "2,000"})]
)
def test_axes_have_labels_however_narrow(low, high, labels):
    drawn = picture("x", "x", "x", "x", lambda: rates_figure({"": [Curve("x", [(256, low), (512, high)])]}, "size", "rate")).svg
    assert "mathdefault" not in drawn
    assert all(f">{label}</text>" in drawn for label in labels)


def test_a_known_cards_bandwidth_has_its_source(capsys):
    row = {"size": 16384, "mib": 1024.0, "gb_per_s": 4264.0, "peak_gb_per_s": 4800.0, "share_of_peak": 0.89, "reason": None}
    for about, said in ((ABOUT, True), (ABOUT | {"environment": {"device": ["NVIDIA H999"]}}, False)):
        copy_report.show(about, [row])
        assert ("Vendor's peaks: NVIDIA H200 datasheet, SXM." in capsys.readouterr().out) is said


@pytest.mark.parametrize(("measured", "tops", "source"), [
    (None, {"fp16": 0.02, "fp32": 0.1}, "seen in this run"),
    (Ceilings(100.0, {"fp16": 0.006, "fp32": 0.2}), {"fp16": 0.02, "fp32": 0.2}, "of what=copy and what=gemm here, or of a faster routine"),
    (Ceilings(100.0, {"fp16": 0.03}), {"fp16": 0.03}, "of what=copy and what=gemm here"),
])  # fmt: skip
def test_no_roof_is_below_what_a_routine_reaches(monkeypatch, tmp_path, measured, tops, source):
    """On many CPUs GEMV is faster than GEMM in FP16."""
    rates = {("gemv", "fp16"): 0.02, ("gemm", "fp16"): 0.006, ("gemv", "fp32"): 0.01, ("gemm", "fp32"): 0.1}
    rows = [{"routine": "copy", "format": "fp32", "bytes": 2**21, "gb_per_s": 90.0, "tflops_per_s": None}]
    rows += [{"routine": name, "format": fmt, "tflops_per_s": tflops, "flops_per_byte": 1e3} for (name, fmt), tflops in rates.items()]
    monkeypatch.setattr(blas_report, "ceilings", lambda *_: measured)
    bound, of_whom = blas_report.roofs({"device": "cpu", "folder": tmp_path}, rows)
    assert (bound.dense, of_whom) == (tops, source)
    assert all((blas_report.share(row, bound) or 0) <= 1 for row in rows)
