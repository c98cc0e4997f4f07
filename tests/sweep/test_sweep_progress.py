"""What a sweep says while it runs and at its end, from the reports and records of its jobs."""

import json

import pytest
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from mpx.render.sweep import print_found, print_sweep
from mpx.settings.front_door import CONF
from mpx.sweep import progress


def ended(job, status="completed", seconds=10.0, *, skipped=False, seed=0, lr=0.1, accuracy=0.9, line=""):
    return {
        "job": job, "status": status, "code": {"completed": 0, "failed": 1, "diverged": 3}[status],
        "seconds": seconds,
        "skipped": skipped, "line": line, "folder": f"outputs/fast/mlp-lr={lr}/seed{seed}",
        "overrides": ["model=mlp", f"optimizer.lr={lr}", f"seed={seed}"],
        "record": {
            "metrics": {"test/accuracy": accuracy}, "speed": {"train_samples_per_s": 1000.0 + seed},
            "precision": {}, "environment": {},
        },
    }  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    """A sweep of 12 jobs, 2 at once."""
    hydra = {"sweep": {"dir": str(tmp_path)}, "sweeper": {}, "overrides": {"task": ["seed=range(12)"]}}
    hydra["launcher"] = {"_target_": "hydra_plugins.mpx.Local", "n_jobs": 2}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return progress.Sweep(OmegaConf.create({"hydra": hydra}))


def leave(folder, *reports):
    for report in reports:
        (folder / f"job{report['job']}").mkdir()
        (folder / f"job{report['job']}" / "report.json").write_text(json.dumps(report))


def test_each_job_that_has_ended_is_a_line(sweep, tmp_path, capsys):
    """Two took 10 s and 20 s: 15 s each for the 8 to come, 2 at once.

    What was skipped or failed says nothing about the time.
    """
    leave(
        tmp_path,
        ended(0),
        ended(1, seconds=20.0),
        ended(2, "failed", 0.1, line="no data"),
        ended(3, seconds=1.0, skipped=True),
    )
    sweep.stop()
    said = capsys.readouterr()
    assert (
        said.out.splitlines()[-1]
        == "job 3 was already completed: 3 of 12 done, 1 failed, 8 left, about 60 s to go"
    )
    assert said.out.splitlines()[0].startswith("job 0 completed in 10 s: 1 of 12 done, 0 failed, 11 left")
    assert said.err == "job 2 failed: no data\n"
    leave(tmp_path, *(ended(job) for job in range(4, 12)))
    sweep.stop()
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "job 11 completed in 10 s: 11 of 12 done, 1 failed, 0 left"
    )


def test_a_diverged_run_is_a_result_after_which_fail_fast_goes_on(tmp_path):
    leave(tmp_path, ended(0), ended(1, "diverged"), ended(2, "failed", skipped=True))
    assert not progress.must_stop(tmp_path)
    leave(tmp_path, ended(3, "failed"))
    assert progress.must_stop(tmp_path)


def test_the_table_has_a_row_per_setting(capsys):
    """200 jobs of 2 settings: mean and sample deviation over seeds, and only what completed counts."""
    jobs = [ended(2 * seed, seed=seed, accuracy=0.9 + 0.02 * (seed % 2)) for seed in range(100)]
    jobs += [ended(2 * seed + 1, seed=seed, lr=3, accuracy=0.5) for seed in range(99)]
    jobs.append(ended(199, "failed", seed=99, lr=3, accuracy=None, line="out of memory"))
    print_sweep(jobs, not_begun=0)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) < 12
    (first,) = (line for line in printed.out.splitlines() if "optimizer.lr=0.1" in line)
    # 0.01 · sqrt(100/99); mean of 1000 … 1099, 1049.5.
    for words in (
        "100 completed",
        "0.9100 ± 0.0101",
        "1,050",
    ):
        assert words in first
    assert "99 completed, 1 failed" in printed.out
    assert printed.out.endswith("Compare the settings: python -m mpx.compare study=fast\n")
    assert printed.err.splitlines() == [
        "1 of 200 jobs did not complete:",
        "  job 199 (failed): out of memory",
        "The same command with retry_failed=true tries failed runs again.",
    ]


def test_jobs_that_failed_alike_are_one_line(capsys):
    print_sweep(
        [
            ended(0, "failed", line="no data"),
            ended(1, "diverged", line="nan"),
            ended(2, "failed", line="no data"),
        ],
        not_begun=0,
    )
    assert capsys.readouterr().err.splitlines()[1:3] == [
        "  jobs 0, 2 (failed): no data",
        "  job 1 (diverged): nan",
    ]


def test_what_a_search_has_found(capsys, tmp_path):
    print_found(
        {"solutions": [{"values": [0.9, 1200.0], "params": {"optimizer.lr": 0.1}}, {"values": [0.8, 3000.0],
        "params": {}}]},
        tmp_path, [ended(0)],
    )  # fmt: skip
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  0.9000  1,200 samples/s  optimizer.lr=0.1",
        "  0.8000  3,000 samples/s  ",
    ]
    print_found({"best_value": 0.9, "best_params": {"precision": "amp"}}, tmp_path, [ended(0)])
    assert capsys.readouterr().out.splitlines()[1:] == ["  0.9000  precision=amp"]
    print_found({"solutions": []}, tmp_path, [])
    assert capsys.readouterr().out == "The search has found nothing: no trial completed.\n"
    perplexity = ended(0) | {"record": {"metrics": {"test/perplexity": 95.0}, "speed": {}}}
    print_found({"best_value": -90.0, "best_params": {"precision": "amp"}}, tmp_path, [perplexity])
    first, found = capsys.readouterr().out.splitlines()
    assert first.endswith(f"(also in {tmp_path}, there with a minus, since less is better):")
    assert found == "  90.00  precision=amp"
