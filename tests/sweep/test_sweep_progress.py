"""What a sweep says while it runs and at its end, from the files that its jobs leave."""

import json
import time
import tracemalloc

import pytest

from mpx.errors import UserError
from mpx.render.sweep import print_found, print_sweep
from mpx.render.sweep_progress import progress_line, span
from mpx.sweep import progress


def ended(job, status="completed", seconds=10.0, *, skipped=False, seed=0, lr=0.1, accuracy=0.9, line=""):
    return {
        "job": job, "status": status, "code": {"completed": 0, "failed": 1, "diverged": 3}[status], "seconds": seconds, "skipped": skipped,
        "line": line, "folder": f"outputs/fast/mlp-lr={lr}/seed{seed}", "overrides": ["model=mlp", f"optimizer.lr={lr}", f"seed={seed}"],
        "record": {"metrics": {"test/accuracy": accuracy}, "speed": {"train_samples_per_s": 1000.0 + seed}},
    }  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    """sweep(*reports, running=(seconds, …)) -> Progress of 12 jobs, 2 at once."""

    def read(*reports, running=()):
        progress.write_size(tmp_path, 12, 2)
        for report in reports:
            (tmp_path / f"job{report['job']}").mkdir()
            (tmp_path / f"job{report['job']}" / "report.json").write_text(json.dumps(report))
        for job, seconds in enumerate(running, 100):
            (tmp_path / f"job{job}").mkdir()
            (tmp_path / f"job{job}" / "started").write_text(str(time.time() - seconds))
        return progress.read_progress(tmp_path)

    return read


def test_time_left_follows_the_jobs_that_have_ended(sweep):
    """Two took 10 s and 20 s: 15 s each for the 7 to come and what is left of the running two, 2 at once."""
    now = sweep(ended(0), ended(1, seconds=20.0), ended(2, "failed", 0.1), running=(5.0, 40.0))
    assert now.left == 7
    assert now.seconds_left() == pytest.approx((7 * 15 + 10) / 2, abs=0.5)


def test_skipped_jobs_say_nothing_about_the_time_left(sweep):
    assert sweep(ended(0, seconds=1.0, skipped=True), running=(3.0,)).seconds_left() is None


def test_a_sweeps_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"output_dir: cannot write .*file/sweep \(Not a directory\)\. Choose another folder"):
        progress.write_size(tmp_path / "file" / "sweep", 1, 1)


def test_the_last_jobs_do_not_fill_all_places(sweep):
    """One job left and none running: it takes its own time, not half of it."""
    assert sweep(*(ended(job) for job in range(11))).seconds_left() == pytest.approx(10.0)


def test_a_long_sweep_does_not_hold_all_reports_at_once(sweep, tmp_path, capsys):
    """A job's whole report takes some KiB, of which a place among the jobs and a time are kept."""
    long = ended(0)
    long["record"] |= {"more": {f"name {number}": number / 7 for number in range(40)}}
    assert sweep(*(long | {"job": job} for job in range(300))).ended == 300
    tracemalloc.start()
    try:
        progress.show(tmp_path, long)
        assert not progress.must_stop(tmp_path / "job300")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / 300 < 1500
    assert "300 of 12 done" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "expected"), [(0.2, "0 s"), (99.4, "99 s"), (100, "2 min"), (5400, "90 min"), (11100, "3 h 05 min")])
def test_lengths_of_time(seconds, expected):
    assert span(seconds) == expected


def test_the_line_after_a_job():
    counts = {"done": 8, "total": 100, "failed": 1}
    line = progress_line(ended(7, seconds=41.3), **counts, running=4, left=87, seconds_left=900.0)
    assert line == "job 7 completed in 41 s: 8 of 100 done, 1 failed, 4 running, 87 left, about 15 min to go"
    line = progress_line(ended(7, skipped=True), **counts, running=4, left=87, seconds_left=None)
    assert line == "job 7 was already completed: 8 of 100 done, 1 failed, 4 running, 87 left"


def test_the_column_is_called_as_the_metric(capsys):
    jobs = [ended(job, lr=lr) for job, lr in enumerate((0.1, 3))]
    for job in jobs:
        job["record"]["metrics"] = {"val/dice": 0.8}
        job["record"]["metric"] = {"name": "val/dice", "goal": "max"}
    print_sweep(jobs, 0)
    assert "val dice" in capsys.readouterr().out
    jobs[0]["record"] |= {"metric": None}
    print_sweep(jobs, 0)
    assert "┃ test " in capsys.readouterr().out


def test_small_figures_keep_their_digits(capsys):
    """A slow training of 0.31 samples/s, and an error of 3e-7."""
    jobs = [ended(0, seed=0)]
    jobs[0]["record"] |= {"metrics": {"val/mse": 3.2e-7}, "metric": {"name": "val/mse", "goal": "min"}}
    jobs[0]["record"]["speed"] = {"train_samples_per_s": 0.3104}
    print_sweep(jobs, 0)
    out = capsys.readouterr().out
    assert "│ 3.200e-07 │ 0.310 " in out


def test_the_table_has_a_row_per_setting(capsys):
    """200 jobs of 2 settings: mean and sample deviation over seeds, and only what completed counts."""
    jobs = [ended(2 * seed, seed=seed, accuracy=0.9 + 0.02 * (seed % 2)) for seed in range(100)]
    jobs += [ended(2 * seed + 1, seed=seed, lr=3, accuracy=0.5) for seed in range(99)]
    jobs.append(ended(199, "failed", seed=99, lr=3, accuracy=None, line="out of memory"))
    print_sweep(jobs, not_begun=0)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) < 12
    (first,) = (line for line in printed.out.splitlines() if "optimizer.lr=0.1" in line)
    assert "100 completed" in first
    assert "0.9100 ± 0.0101" in first  # 0.01 · sqrt(100/99)
    assert "1,050" in first  # mean of 1000 … 1099, 1049.5
    assert "99 completed, 1 failed" in printed.out
    assert "0.5000 ± 0.0000" in printed.out
    assert printed.out.endswith("Compare the settings: python -m mpx.compare study=fast\n")
    assert printed.err.splitlines() == [
        "1 of 200 jobs did not complete:",
        "  job 199 (failed): out of memory",
        "The same command with retry_failed=true tries failed runs again.",
    ]


def test_a_run_that_two_jobs_have_had_counts_once(capsys):
    """As of -m seed=0,0,1: a run that counts twice would make the seeds look more alike."""
    print_sweep([ended(0), ended(1, skipped=True), ended(2, seed=1, accuracy=0.8)], not_begun=0)
    printed = capsys.readouterr().out
    assert "3 completed" in printed
    assert "0.8500 ± 0.0707" in printed


def test_jobs_that_failed_alike_are_one_line(capsys):
    print_sweep([ended(0, "failed", line="no data"), ended(1, "diverged", line="nan"), ended(2, "failed", line="no data")], not_begun=0)
    assert capsys.readouterr().err.splitlines()[1:3] == ["  jobs 0, 2 (failed): no data", "  job 1 (diverged): nan"]


def test_emulated_speed_is_marked_and_the_study_can_be_compared(capsys):
    job = ended(0)
    job["record"] |= {"emulated": True}
    print_sweep([job], not_begun=0)
    out = capsys.readouterr().out
    assert "emulated" in out
    assert out.endswith("Compare the settings: python -m mpx.compare study=fast\n")


def test_a_mean_speed_over_several_hosts_is_marked(capsys):
    jobs = [ended(seed, seed=seed) for seed in range(3)]
    for job, host in zip(jobs, "aab", strict=True):
        job["record"] |= {"host": host}
    print_sweep(jobs[:2], not_begun=0)
    assert "hosts" not in capsys.readouterr().out
    print_sweep(jobs, not_begun=0)
    assert ", 2 hosts" in capsys.readouterr().out


def test_the_command_to_compare_can_be_pasted(capsys):
    job = ended(0)
    job["folder"] = "my runs/größe/mlp/seed0"
    print_sweep([job], not_begun=0)
    assert capsys.readouterr().out.endswith("""python -m mpx.compare 'study="größe"' 'output_dir="my runs"'\n""")


def test_what_a_search_has_found(capsys, tmp_path):
    print_found(
        {"solutions": [{"values": [0.9, 1200.0], "params": {"optimizer.lr": 0.1}}, {"values": [0.8, 3000.0], "params": {}}]},
        tmp_path, [ended(0)],
    )  # fmt: skip
    assert capsys.readouterr().out.splitlines()[1:] == ["  0.9000  1,200 samples/s  optimizer.lr=0.1", "  0.8000  3,000 samples/s  "]
    print_found({"solutions": [{"values": [1236.4, 99.97], "params": {}}]}, tmp_path, [ended(0)])
    assert capsys.readouterr().out.splitlines()[1:] == ["  1236  100 samples/s  "]
    print_found({"best_value": 0.9, "best_params": {"precision": "amp"}}, tmp_path, [ended(0)])
    assert capsys.readouterr().out.splitlines()[1:] == ["  0.9000  precision=amp"]
    print_found({"solutions": []}, tmp_path, [])
    assert capsys.readouterr().out == "The search has found nothing: no trial completed.\n"
    perplexity = ended(0) | {"record": {"metrics": {"test/perplexity": 95.0}, "speed": {}}}
    print_found({"best_value": -90.0, "best_params": {"precision": "amp"}}, tmp_path, [perplexity])
    first, found = capsys.readouterr().out.splitlines()
    assert first.endswith(f"(also in {tmp_path}, there with a minus, since less is better):")
    assert found == "  90.00  precision=amp"
