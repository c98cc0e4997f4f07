"""Runs and records made up for tests of comparisons; real ones come from tests/compare/test_compare.py."""

import json
import tempfile
from pathlib import Path

from mpx.compare.aggregate import compare, question
from mpx.compare.run import Run, Served, ServingPlace, Way, changes_of
from mpx.compare.table import read_results, results_csv

GPU = "NVIDIA H200"


def made(setting="fp32-dense", seed=0, value=0.95, speed=1000.0, *, metric="test/accuracy", **changed):
    """A completed run on a GPU that it had for itself; `setting` as in Run.setting."""
    plain, _, changes = setting.partition(" ")
    precision, sparsity = plain.split("-")
    figures = {
        "model": "resnet18", "data": "cifar10", "precision": precision, "sparsity": sparsity,
        "changes": changes_of(changes), "seed": seed,
        "status": "completed", "metrics": {} if value is None else {metric: value}, "batch_size": 256,
        "device": GPU,
        "train_samples_per_s": speed, "step_ms_p50": 25.6, "model_tflops_per_s": 100.0,
        "time_to_train_s": 60.0, "exclusive": True,
        "emulated": False, "peak_gib": 2.5, "loss_scale_final": None, "optimizer_steps": 100,
        "skipped_steps": 0,
        "gradient_underflow": 0.0, "gradient_underflow_unscaled": 0.0, "density": None,
        "kept_magnitude": None,
        "folder": f"resnet18-cifar10-{plain}/seed{seed}", "environment": {"torch": "2.15.0"},
    }  # fmt: skip
    return Run(**figures | changed)


def seeds(setting, values, speeds=None, **changed):
    """One run per value, with seeds 0, 1, …"""
    speeds = speeds or [1000.0 + seed for seed in range(len(values))]
    return [
        made(setting, seed, value, speed, **changed)
        for seed, (value, speed) in enumerate(zip(values, speeds, strict=True))
    ]


CONTROL = seeds("fp32-dense", [0.950, 0.951, 0.952, 0.953, 0.954], [1000, 1010, 990, 1005, 995])
AMP = seeds("amp-dense", [0.9505, 0.9511, 0.9527, 0.9532, 0.9541], [3100, 3110, 3090, 3105, 3095])


def compared(runs, **changed):
    given = {"study": "s", "folder": Path("s"), "left_out": ()}
    given |= {key: changed.pop(key) for key in [*given] if key in changed}
    return compare(runs, question(**{"control": "fp32-dense", "metric": "test/accuracy"} | changed), **given)


def reread(runs):
    """The runs as a results.csv keeps them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.csv"
        path.write_text(results_csv(runs))
        return read_results(path)


def only(comparison):
    (group,) = comparison.groups
    return group, {row.setting: row for row in group.rows}


def served(
    fmt="fp16",
    rate=5000.0,
    *,
    sparse=False,
    backend="graph",
    device=GPU,
    batch=(1, 256),
    host=None,
    value=0.95,
    **new,
):
    """What compare reads of one row of deploy.json."""
    figures = {
        "latency_ms_p50": 0.5,
        "latency_ms_p99": 0.6,
        "weights_gib": 0.04,
        "exclusive": True,
        "accurate": True,
    }
    way = Way(fmt, sparse, backend)
    return Served(
        ServingPlace(device, *batch, host), way, {"test/accuracy": value}, samples_per_s=rate, **figures | new
    )


def deployed_row(rate=5000.0, **changed):
    """What mpx.deploy writes of it on a GPU, as far as compare and the card read it."""
    latency = {"latency_ms_p50": 0.5, "latency_ms_p95": 0.55, "latency_ms_p99": 0.6, "relative_error": 1e-3}
    speed = [{"batch": size, "serve_samples_per_s": rate * size / 256} | latency for size in (1, 256)]
    row = {
        "format": "fp16",
        "weights": "auto",
        "backend": "graph",
        "sparse_layers": [],
        "quantised_layers": ["fc"],
        "exclusive": True,
    }
    row |= {
        "environment": {"device": [GPU]},
        "metrics": {"test/accuracy": 0.9},
        "weights_gib": 0.04,
        "device": "cuda",
    }
    row |= {
        "metric": {"name": "test/accuracy", "goal": "max"},
        "test_samples": 1000,
        "serve_samples_per_s": rate,
    } | changed
    chosen = {key: row[key] for key in ("backend", "sparse_layers")}
    return {"speed": [at | chosen for at in speed]} | row


def record(
    *,
    precision="fp32",
    sparsity="dense",
    seed=0,
    accuracy=0.95,
    speed=1000.0,
    layers=3,
    status="completed",
    **setting,
):
    """What a run on a GPU writes as result.json."""
    layer = {
        "name": "layer1.0.conv1.weight",
        "type": "Conv2d",
        "shape": [64, 64, 3, 3],
        "pruned": True,
        "reason": None,
    }
    layer |= {
        "density": 0.5,
        "kept_magnitude": 0.746,
        "sparse_kernel": "cusparselt",
        "sparse_kernel_reason": None,
    }
    return {
        "schema_version": 1,
        "status": status,
        "setting": {"model": "resnet18", "data": "cifar10", "precision": precision, "sparsity": sparsity,
        "seed": seed} | setting,
        "config": {"data": {"batch_size": 256}, "trainer": {"devices": 1}},
        "metrics": {"test/accuracy": accuracy, "test/loss": 0.2, "val/accuracy": None},
        "speed": {
            "train_samples_per_s": speed, "step_ms_p50": 25.6, "step_ms_p95": 30.0, "measured_steps": 90,
            "warmup_steps": 10,
            "model_tflops_per_s": 100.0, "time_to_train_s": 60.0, "exclusive": True, "exclusive_reason": None,
        },
        "memory": {"peak_allocated_gib": 2.5, "peak_reserved_gib": 3.0, "peak_rss_gib": 4.0},
        "precision": {
            "mode": precision, "emulated": False, "loss_scale": {"initial": 65536.0, "final": 131072.0},
            "optimizer_steps": 98,
            "skipped_steps": 2, "gradient_underflow_fraction": 0.001,
            "gradient_underflow_unscaled_fraction": 0.1,
        },
        "sparsity": {"pattern": sparsity, "density": 0.5, "kept_magnitude": 0.746,
        "layers": [layer] * layers},
        "environment": {
            "torch": "2.15.0", "device": [GPU] * 4,
            "command": f"python -m mpx.train seed={seed} precision={precision}",
            "started_at": "2026-11-21T14:00:00+00:00", "cpu": "a CPU", "threads": 8,
        },
    }  # fmt: skip


def write(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(
        content if isinstance(content, str) else json.dumps(content, indent=2)
    )
    return folder
