"""Comparisons made by hand for tests of what draws them; with curves and records of their runs where
wanted.
"""

import json
import random
from pathlib import Path
from statistics import mean, stdev

from mpx.compare.aggregate import question
from mpx.compare.comparison import Comparison, Decision, Estimate, Group, Method, Row, Speedup, Verdict
from mpx.compare.run import Run, changes_of
from mpx.runs.result import CurveFile

ENVIRONMENT = {
    "mpx": "0.1", "git": {"commit": "0" * 40, "dirty": False}, "python": "3.12.3", "torch": "2.11.0+cu130",
    "device": ["NVIDIA H200"],
    "driver": "580.159.04", "command": "python -m mpx.train", "started_at": "2026-11-21T10:00:00+00:00",
}  # fmt: skip
SETTINGS = ("fp32-dense", "tf32-dense", "amp-dense", "amp_bf16-dense", "amp-2of4", "amp_bf16-2of4")
SPEED = {"fp32": 9486.0, "tf32": 22335.0, "amp": 49533.0, "amp_bf16": 56947.0}


def made_run(
    setting: str,
    seed: int,
    draw: random.Random,
    *,
    model="resnet18",
    data="cifar10",
    status="completed",
    **changed,
) -> Run:
    accuracy = 0.951 - 0.004 * ("2of4" in setting) + draw.gauss(0, 0.0012)
    mode, _, sparsity = setting.split(" ")[0].partition("-")
    changes = changes_of(setting.partition(" ")[2])
    pruned = sparsity != "dense"
    figures = {
        "model": model, "data": data, "precision": mode, "sparsity": sparsity, "changes": changes,
        "seed": seed, "status": status,
        "metrics": {} if status == "diverged" else {"test/accuracy": accuracy, "test/loss": draw.uniform(0.2,
        0.3)},
        "batch_size": 512, "device": "NVIDIA H200", "train_samples_per_s": SPEED.get(mode,
        30000.0) * draw.uniform(0.98, 1.02),
        "step_ms_p50": draw.uniform(5, 9), "model_tflops_per_s": draw.uniform(30, 60),
        "time_to_train_s": draw.uniform(60, 160),
        "exclusive": True, "emulated": False,
        "peak_gib": (2.1 if mode.startswith("amp") else 3.9) * draw.uniform(0.99, 1.01),
        "loss_scale_final": 65536.0 if mode == "amp" else None, "optimizer_steps": 1000,
        "skipped_steps": 2 if mode == "amp" else 0,
        "gradient_underflow": draw.uniform(0, 1e-5), "gradient_underflow_unscaled": draw.uniform(0.1, 0.2),
        "density": 0.5 if pruned else None, "kept_magnitude": draw.uniform(0.73, 0.76) if pruned else None,
        "folder": f"{model}-{data}-{setting.replace(' ', '-')}/seed{seed}", "environment": dict(ENVIRONMENT),
    }  # fmt: skip
    return Run(**figures | changed)


def estimate(values: list[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return Estimate(mean(known), stdev(known) if len(known) > 1 else None, len(known)) if known else None


def made_row(runs: list[Run], control: list[Run], metric: str) -> Row:
    completed = [run for run in runs if run.status == "completed"]
    found = estimate([run.metrics.get(metric) for run in completed])
    base = estimate([run.metrics.get(metric) for run in control])
    counts = [run.train_samples_per_s for run in runs if not run.emulated and run.exclusive]
    throughput, reference = estimate(counts), estimate([run.train_samples_per_s for run in control])
    decision = speedup = None
    if runs is not control and found is not None:
        change = found.mean - base.mean
        low, high = (change - 0.003, change + 0.003) if found.n > 1 else (None, None)
        verdict = Verdict.UNDECIDED if low is None else Verdict.NO_LOSS if low > -0.005 else Verdict.LOSS
        tested = {"p": 0.01, "p_holm": 0.03} if low else {"more_seeds": 3}
        decision = Decision(verdict, Method.PAIRED, difference=change, low=low, high=high, **tested)
    if runs is not control and throughput is not None:
        ratio = throughput.mean / reference.mean
        speedup = Speedup(ratio, ratio * 0.97, ratio * 1.03)
    return Row(
        setting=runs[0].setting, runs=tuple(runs),
        metric=found, decision=decision, throughput=throughput,
        speedup=speedup, speed_note=None if throughput else "emulated: its speed is not that of this format",
        peak_gib=estimate([run.peak_gib for run in runs]),
        time_to_train_s=estimate([run.time_to_train_s for run in completed]),
        skipped_steps=estimate([run.skipped_steps for run in runs]),
        density=estimate([run.density for run in runs]),
        serve=estimate([125e3 if run.density else 95e3 for run in runs if run.precision == "amp"]),
    )  # fmt: skip


def made_group(
    settings=SETTINGS, seeds=3, metric="test/accuracy", seed=0, notes=(), diverged=(), **changed
) -> Group:
    """The first of `settings` is the control; those in `diverged` lose their last seed."""
    draw = random.Random(seed)
    runs = {
        setting: [
            made_run(
                setting,
                i,
                draw,
                status="diverged" if setting in diverged and i == seeds - 1 else "completed",
                **changed,
            )
            for i in range(seeds)
        ]
        for setting in settings
    }
    control = runs[settings[0]]
    rows = tuple(made_row(found, control, metric) for found in runs.values())
    model, data = control[0].model, control[0].data
    return Group(
        model, data, settings[0], rows,
        f"Fastest to train at no loss of accuracy: {settings[-1]}, 6.00 times as fast as {settings[0]} "
        "(5.82 to 6.18, 95 % confidence).",
        "", tuple(notes),
    )  # fmt: skip


def made_comparison(folder: Path, *groups: Group, left_out=(), study="grid") -> Comparison:
    return Comparison(
        study, question(metric="test/accuracy"), groups or (made_group(),), tuple(left_out), folder,
        ("python -m mpx.train -m study=grid precision=fp32,tf32,amp,amp_bf16 seed=0,1,2",
        "python -m mpx.compare study=grid"),
    )  # fmt: skip


def write_runs(comparison: Comparison, steps: int = 100, every: int = 5) -> None:
    """result.json and curves.csv of all runs of `comparison`."""
    for group in comparison.groups:
        for run in (run for row in group.rows for run in row.runs):
            folder = comparison.folder / run.folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result.json").write_text(json.dumps({"status": run.status}))
            draw = random.Random(f"{run.setting}{run.seed}")
            scalars = {
                "train/loss": [
                    (i, 2.3 * 0.96**i + draw.uniform(0, 0.05) + 0.02) for i in range(0, steps, every)
                ],
                "val/loss": [
                    (i, 2.3 * 0.97**i + draw.uniform(0, 0.05) + 0.1) for i in range(0, steps, 4 * every)
                ],
                "numerics/gradient_underflow_fraction": [
                    (i, draw.uniform(0, 1e-5)) for i in range(0, steps, every)
                ],
            }
            if run.precision == "amp":
                scalars["numerics/loss_scale"] = [
                    (i, 2.0 ** (16 - (i > 40 + run.seed))) for i in range(0, steps, every)
                ]
            write_curves(folder, scalars)


def write_curves(folder: Path, scalars: dict[str, list[tuple[int, float]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = CurveFile(folder, 0)
    for tag, points in scalars.items():
        for step, value in points:
            file.append({tag: value}, step)
    file.close()
