"""All runs below a folder as flat records, whatever became of them; and the removal of those that failed."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpx.compare.collect import run_folders
from mpx.errors import InUse
from mpx.runs.folder import DONE, goes_on, locked, read_result
from mpx.runs.result import judged_by_record

RUNNING, CUT_OFF = "running", "cut_off"  # beside the statuses of a record
SPEEDS = ("train_samples_per_s", "step_ms_p50", "time_to_train_s", "exclusive", "cpu_used_by_others")


def list_runs(
    output_dir: str | os.PathLike[str] = "outputs",
    *,
    study: str | None = None,
    status: str | None = None,
    setting: str | None = None,
) -> list[dict[str, Any]]:
    """All runs below a folder, one flat dict each, whatever became of them.

        frame = pandas.DataFrame(mpx.list_runs("outputs", status="completed"))

    A dict has `study`, `setting`, `label`, `status`, `error`; the settings (`model`, `data`, `precision`,
    `sparsity`, `seed`, and what differs from the defaults, such as `optimizer.lr`); `metric`, the name of the
    metric that counts, and all metrics, such as `test/accuracy`; speeds, such as `train_samples_per_s`; and
    `folder`. docs/run-folder.md explains them.

    study, status: only runs with it. status: completed, diverged, failed, interrupted, running, or cut_off.
    setting: only runs whose setting has this text, such as "amp-2of4".
    """
    root = Path(output_dir)
    wanted = {"study": study, "status": status}
    return [
        run
        for run in (_record(folder, root) for folder in run_folders(root))
        if all(value in (None, run[key]) for key, value in wanted.items())
        if setting is None or setting in run["setting"]
    ]


def _record(folder: Path, root: Path) -> dict[str, Any]:
    record = read_result(folder) or {}
    status, metrics = record.get("status", CUT_OFF), record.get("metrics") or {}
    if status not in DONE and goes_on(folder):
        status = RUNNING
    return {
        "study": folder.relative_to(root).parts[0],
        "setting": folder.parent.name,
        "label": record.get("label"),
        "status": status,
        "error": record.get("error"),
        **record.get("setting", {}),
        "metric": judged_by_record(record).name if metrics else None,
        **metrics,
        **{name: record.get("speed", {}).get(name) for name in SPEEDS},
        "emulated": record.get("precision", {}).get("emulated"),
        "folder": str(folder),
    }


def remove_failed(output_dir: str, study: str | None = None, setting: str | None = None) -> list[str]:
    """Remove the folders of failed runs, and return them. A run that goes on is never touched: its process
    holds its lock."""
    removed = []
    for run in list_runs(output_dir, study=study, status="failed", setting=setting):
        folder = Path(run["folder"])
        with suppress(InUse):
            held = locked(folder)
            if (read_result(folder) or {}).get("status") == "failed":  # also now that nobody changes it
                shutil.rmtree(folder)
                removed.append(str(folder))
            held.release()
    return removed


def show_runs(output_dir: str, study: str | None, status: str | None, setting: str | None) -> None:
    """Print a line per run. It ends with the setting, which a narrow terminal continues on its next line."""
    from mpx.compare.words import shared
    from mpx.render.comparison_tables import marked
    from mpx.system.printing import UNKNOWN, digits, number, rate, shown

    rows = [("study", "seed", "status", "metric", "value", "samples/s", "time to train", "setting")]
    for run in list_runs(output_dir, study=study, status=status, setting=setting):
        speed, seconds = run["train_samples_per_s"], run["time_to_train_s"]
        alone = "" if run["exclusive"] else shared(run["cpu_used_by_others"])
        mark = "" if speed is None else marked("emulated" if run["emulated"] else alone)
        about = (run["study"], str(run.get("seed", UNKNOWN)), run["status"], run["metric"] or UNKNOWN)
        figures = (number(run.get(run["metric"]), ".4f"), rate(speed) + mark)
        time = number(seconds, digits(seconds, 1), " s")
        rows.append((*about, *figures, time, shown(run["label"] or run["setting"])))
    if len(rows) == 1:
        print(f"no such run below {output_dir}")
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
