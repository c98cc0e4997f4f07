"""The tables and the model card say what deploy.json says: each figure at its place."""

import json

import pytest
from made_runs import GPU, deployed_row, record

from mpx.deploy.card import card
from mpx.deploy.show import replaced, show, show_all

AT = {"serve_samples_per_s": 1001.0, "latency_ms_p50": 0.111, "latency_ms_p95": 0.222, "latency_ms_p99": 0.333, "relative_error": 1.5e-3}
LARGE = {"serve_samples_per_s": 57657.0, "latency_ms_p50": 4.44, "latency_ms_p95": 5.55, "latency_ms_p99": 6.66, "relative_error": 2.5e-4}
LAYER = {"name": "fc", "shape": [64, 32], "rows": 512, "reason": None, "refused": {}}
CHOSEN = {"backend": "compile", "sparse_layers": ["fc"], "layers": [], "candidates": {}, "refused": {}}
MS = {"own": 0.5, "int8 matrix product": 0.4, "int8 2:4 written": 0.3, "int8 2:4 turned": 0.35}
LAYERS = [LAYER | {"name": name, "ms": MS, "served": "int8 2:4 written"} for name in ("fc", "twin", "third")]
WHY = {
    "layers": LAYERS,
    "candidates": {"compile, own kernels": 57000.0, "compile, fastest kernels": 57657.0},
    "refused": {"graph, fastest kernels": "no stream"},
}
SMALL = {
    "backend": "graph",
    "sparse_layers": [],
    "layers": [layer | {"rows": 2, "ms": MS | {"own": ms}, "served": "own"} for layer, ms in zip(LAYERS, (0.01, 0.02, 0.01), strict=True)],
    "candidates": {"graph, own kernels": 1100.0},
    "refused": {"graph, fastest kernels": "no stream", "compile, own kernels": "other"},
}
ROW = deployed_row(
    format="int8",
    backend="compile",
    sparse_layers=["fc"],
    quantised_layers=["fc", "out"],
    metrics={"test/loss": 0.5, "test/accuracy": 0.8125},
    speed=[{"batch": 1} | AT | CHOSEN | SMALL, {"batch": 256} | LARGE | CHOSEN | WHY],
    serve_samples_per_s=57657.0,
    weights_gib=0.0123,
    memory={"peak_allocated_gib": 1.25, "peak_reserved_gib": 2.5, "peak_rss_gib": 5.0},
    layers=[*LAYERS, LAYER | {"name": "lstm", "ms": {}, "reason": "why", "served": "own"}],
    finetune={"epochs": 0.5, "lr": 0.1, "kept": True} | {
        "before": {"val/loss": 0.75, "val/accuracy": 0.625},
        "after": {"val/loss": 0.25, "val/accuracy": 0.875},
    },
    exports={"onnx": {"file": "served/x/model.onnx", "bytes": 3 * 2**20, "metrics": {"test/accuracy": 0.75}, "relative_error": 3.5e-2}},
    cpu_busy=None,
)  # fmt: skip


def lines(text):
    """The cells of each line of a table."""
    return [[cell.strip() for cell in line.replace("┃", "│").strip("│ ").split("│")] for line in text.splitlines()]


def test_tables(capsys):
    show(ROW, record(accuracy=0.875) | {"config": {"data": {}, "trainer": {"limit_test_batches": 1.0}}})
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == f"int8 on {GPU}"
    found = lines(out)
    assert ["1", "1,001", "0.111 ms", "0.222 ms", "0.333 ms", "1.5e-03", "dense, graph"] in found
    assert ["256", "57,657", "4.44 ms", "5.55 ms", "6.66 ms", "2.5e-04", "2:4 in 1 layer, compile"] in found
    table = found.index(["layer", "batch", "weight", "rows", "own ms", "int8 ms", "2:4 ms", "served by"])
    assert found[table + 2 : table + 5] == [
        ["fc and 1 more", "1", "64×32", "2", "0.0100", "0.4000", "0.3000", "own"],
        ["fc and 2 more", "256", "64×32", "512", "0.5000", "0.4000", "0.3000", "int8 2:4 written"],
        ["twin", "1", "64×32", "2", "0.0200", "0.4000", "0.3000", "own"],
    ]
    assert "why" not in out  # the layer without other kernels has no line
    notes = out[out.index("test accuracy") :].splitlines()
    assert notes == [
        "test accuracy 0.8125 as served, 0.8750 after training",
        "The model as a whole is fastest dense at batch 1.",
        "layers that multiply INT8: 2",
        "fine-tuned with 8 bits for 0.5 epochs: val accuracy 0.6250 → 0.8750, val loss 0.7500 → 0.2500; served so",
        "chosen at batch 1 by samples/s: graph, own kernels 1,100",
        "chosen at batch 256 by samples/s: compile, fastest kernels 57,657; compile, own kernels 57,000",
        "weights 12.60 MiB, peak memory 1.25 GiB",
        "served/x/model.onnx 3.00 MiB, test accuracy 0.7500, error to FP32 3.5e-02",
        "not taken at batch 1, 256: graph, fastest kernels (no stream)",
        "not taken at batch 1: compile, own kernels (other)",
    ]


def test_figures_of_8_bits_say_what_they_leave_out(capsys):
    made = record(accuracy=0.875) | {"config": {"data": {}, "trainer": {"limit_test_batches": 1.0}}}
    show(ROW, made)
    assert "by others; 8 bits without the rounding of activations" in " ".join(capsys.readouterr().out.split())
    show(ROW | {"quantised_layers": []}, made)
    assert "No layer multiplies INT8: the model is served in BF16." in " ".join(capsys.readouterr().out.split())
    show(ROW | {"format": "bf16", "quantised_layers": []}, made)
    printed = capsys.readouterr().out
    assert "8 bits without" not in printed
    assert "unknown whether" not in printed
    assert "No layer multiplies" not in printed


def test_a_speed_of_which_nobody_knows_whether_the_device_was_shared(capsys):
    row = ROW | {"exclusive": None, "exclusive_reason": "NVML: none"}
    show(row, record(accuracy=0.875) | {"config": {"data": {}, "trainer": {"limit_test_batches": 1.0}}})
    line = "It is unknown whether others used the device (NVML: none): the speed may be too low."
    assert line in " ".join(capsys.readouterr().out.split())


def test_all_rows(capsys):
    alike = {"weights": "2of4", "format": "fp16", "speed": [at | CHOSEN for at in ROW["speed"]]}
    show_all([("a", ROW), ("a", ROW | alike)])
    found = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "int8 auto: dense / 2:4 in 1 layer graph / compile 0.8125 0.111 57,657 12.60" in found
    assert "fp16 2:4 in 1 layer compile 0.8125 0.111 57,657 12.60" in found


def test_the_card(tmp_path):
    speed = [{"batch": 1} | AT | CHOSEN, {"batch": 256} | LARGE | CHOSEN]
    other = ROW | {"format": "fp16", "speed": speed, "exclusive": False, "metrics": {"test/accuracy": 0.7}}
    (tmp_path / "deploy.json").write_text(json.dumps({"rows": [ROW, other]}))
    text = card(tmp_path, record(accuracy=0.8125))
    by = "0.111 at batch 1 dense by graph | 0.333 at batch 1 dense by graph"
    first = f"| Sparse INT8, fine-tuned, compile | {GPU} | 0.8125 | {by} | 57,657 at batch 256 | 12.6 |"
    assert first in text
    at = "0.111 at batch 1 (shared) | 0.333 at batch 1 (shared) | 57,657 at batch 256 (shared)"
    assert f"| Sparse FP16, fine-tuned, compile | {GPU} | 0.7000 (less accurate) | {at} | 12.6 |" in text


@pytest.mark.parametrize("speed", [None, [], [None], [{"serve_samples_per_s": "1"}]])
def test_an_earlier_row_that_mpx_did_not_write_is_named_all_the_same(speed):
    line = replaced(deployed_row(speed=speed, backend="\x1b[2J"))
    assert line == "This replaces the row of fp16, auto, cuda: backend \\x1b[2J, – samples/s at batch None"
