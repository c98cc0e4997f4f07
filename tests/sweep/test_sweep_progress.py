"""What a sweep says while it runs and at its end, from the reports and records of its jobs."""

import json

import pytest
from hydra import initialize_config_dir
from made_runs import record, write
from omegaconf import OmegaConf

from mpx.render.sweep import print_sweep
from mpx.settings.front_door import CONF
from mpx.sweep import progress


def ended(job, status="completed", seconds=10.0, *, skipped=False, seed=0, lr=0.1, accuracy=0.9, line=""):
    return {
        "job": job, "status": status, "code": {"completed": 0, "failed": 1, "diverged": 3}[status],
        "seconds": seconds, "skipped": skipped, "line": line, "folder": f"outputs/fast/mlp-lr={lr}/seed{seed}",
        "overrides": ["model=mlp", f"optimizer.lr={lr}", f"seed={seed}"],
    }  # fmt: skip


def with_record(report):
    """The report with the record of a run of its setting."""
    made = record(seed=report["job"] // 2, accuracy=0.9 + 0.02 * (report["job"] // 2 % 2), speed=1000.0)
    lr = report["overrides"][1].partition("=")[2]
    made["setting"] |= {"optimizer.lr": float(lr), "trainer.max_epochs": 2}
    return report | {"record": made}


@pytest.fixture
def sweep(tmp_path):
    """A sweep of 12 jobs, 2 at once."""
    hydra = {"sweep": {"dir": str(tmp_path)}, "sweeper": {}}
    hydra["overrides"] = {"task": ["model=mlp", "optimizer.lr=0.1,3", "seed=range(6)"]}
    hydra["launcher"] = {"_target_": "hydra_plugins.mpx.Local", "n_jobs": 2}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return progress.Sweep(OmegaConf.create({"hydra": hydra}))


def leave(folder, *reports):
    for report in reports:
        (folder / f"job{report['job']}").mkdir()
        (folder / f"job{report['job']}" / "report.json").write_text(json.dumps(report))


def test_each_run_that_has_ended_is_a_line(sweep, tmp_path, capsys, monkeypatch):
    """Two took 10 s and 20 s: 15 s each for the 8 to come, 2 at once.

    What was skipped or failed says nothing about the time.
    """
    monkeypatch.chdir(tmp_path)
    made = with_record(ended(1))
    write(tmp_path / made["folder"], made["record"] | {"status": "completed"})
    leave(
        tmp_path,
        ended(1, seconds=20.0),
        ended(2, "failed", 0.1, line="no data") | {"folder": None},
        ended(3, seconds=1.0, skipped=True),
        ended(4),
    )
    sweep.stop()
    said, name = capsys.readouterr(), "resnet18 fp32-dense optimizer.lr=0.1 seed 0"
    assert said.out.splitlines() == [
        f"1/12 {name}  0.9000  1,000 samples/s  20 s, about 2 min to go",
        f"3/12 {name}  0.9000  1,000 samples/s  finished earlier, about 90 s to go",
        f"4/12 {name}  0.9000  1,000 samples/s  10 s, about 60 s to go",
    ]
    assert said.err == "2/12 optimizer.lr=0.1 seed=0  failed: no data\n"


def test_the_table_has_a_row_per_setting(capsys):
    """200 jobs of 2 settings: mean and sample deviation over seeds, and only what completed counts."""
    jobs = [with_record(ended(job, lr=(0.1, 3)[job % 2], seed=job // 2)) for job in range(199)]
    jobs.append(with_record(ended(199, "failed", seed=99, lr=3, line="out of memory")))
    print_sweep(jobs, {"optimizer.lr", "seed"})
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) < 12
    (first,) = (line for line in printed.out.splitlines() if "optimizer.lr=0.1" in line)
    for words in ("resnet18 fp32-dense", "100 completed", "0.9100 ± 0.0101", "1,000"):  # 0.01 · sqrt(100/99)
        assert words in first
    assert "trainer.max_epochs" not in first  # which all have
    assert "99 completed, 1 failed" in printed.out
    assert max(map(len, printed.out.splitlines())) < 100
    assert printed.out.endswith("Compare the settings: python -m mpx.compare study=fast\n")
    assert printed.err.splitlines() == [
        "1 of 200 runs did not complete",
        "The same command with retry_failed=true tries failed runs again.",
    ]
