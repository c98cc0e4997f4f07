"""What a sweep does about a job that it cannot run. test_sweep.py has fail_fast=true, test_failures.py retry_failed=true."""

import json
import shutil

from few_steps import FEW_STEPS
from filelock import FileLock

from mpx.sweep.job_report import failed_now


def test_a_job_that_another_sweep_runs_is_in_use(train, tmp_path, monkeypatch):
    """The job's report is what the sweep's table and fail_fast=true go by."""
    first = train("model=mlp", *FEW_STEPS)
    (first.folder / "result.json").rename(tmp_path / "result.json")
    (folder,) = first.outputs.glob("*/*/seed0")
    monkeypatch.setenv("MPX_SWEEP_REPORT", str(tmp_path / "report.json"))
    with FileLock(folder / ".lock"):
        ran = train("model=mlp", *FEW_STEPS)
    assert (ran.code, ran.err) == (2, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["folder"], report["skipped"]) == ("in use", None, True)
    assert report["line"] == f"{folder} is in use by another process. The same command takes its result once it has finished."
    assert not failed_now(report | {"code": 2})
    shutil.move(tmp_path / "result.json", folder)
    assert train("model=mlp", *FEW_STEPS).code == 0
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "completed"
