"""Neither a run nor a sweep grows: experiments/long_runs, shorter."""

from statistics import median

import pytest
from experiment import script

run = script("long_runs/run.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "every", "done", "kib"),
    [
        ([*run.LONG, "trainer.max_steps=1600"], 80, run.steps, {"run": 0.8}),
        (["-m", *run.JOB, "seed=range(20)"], 1, run.jobs, {"sweep": 60, "starter": 20}),
    ],
    ids=["steps", "jobs"],
)
def test_growth_is_bounded(tmp_path, command, every, done, kib):
    """kib: of resident memory, for each step or job, at most."""
    rows = list(run.watch(command, tmp_path, every, done))
    for process, most in kib.items():
        assert run.growth(rows, process, "rss_mib") * 1024 < most
        later = [row for row in rows if row["process"] == process][3:]
        assert len(later) > 9
        for column in ("files", "threads", "event_files"):  # what lasts: a checkpoint that is being written has files open for a moment
            first, last = (median(row[column] for row in some) for some in (later[:5], later[-5:]))
            assert last <= first, column
