"""Jobs whose runs another process was training, as a sweep of the same settings does: once it has finished, each takes its result."""

import time
from pathlib import Path

from omegaconf import DictConfig

from mpx.printing import how_many
from mpx.runs.folder import goes_on
from mpx.sweep import cluster, progress
from mpx.sweep.child import start_again
from mpx.sweep.job_report import IN_USE, read_reports

INTERVAL = 0.5  # seconds between two looks at a run


def wait_for_others(config: DictConfig, sweep: Path) -> None:
    """Start these jobs again when nothing trains their runs any more. A run that was cut off then continues.

    config: of the sweep. sweep: its folder. A cluster's jobs are left, since theirs is another machine.
    """
    if cluster.launcher_of(config.hydra) is not None:
        return
    while theirs := [report for report in read_reports(sweep) if report["status"] == IN_USE]:
        print(f"waiting for {how_many(len(theirs), 'job')} that another process trains", flush=True)
        for report in theirs:
            job = sweep / f"job{report['job']}"
            if config.fail_fast and progress.must_stop(job):
                return
            time.sleep(INTERVAL)  # the other process may be about to lock the run
            while goes_on(Path(report["folder"])):
                time.sleep(INTERVAL)
            start_again(config, config.hydra, report, job)
