"""The beginning and the end of a sweep, in the process that the user started."""

import shutil
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from mpx.sweep.job_report import read_reports


class Summary(Callback):
    """Prints a table of all jobs after a sweep."""

    folder: Path | None = None  # of the sweep that this process started
    made: tuple[Path, ...] = ()  # it and those of its parents that were not there before
    failed = 0  # its jobs that did not complete

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        Summary.folder = Path(config.hydra.sweep.dir)
        Summary.made = tuple(path for path in (Summary.folder, *Summary.folder.parents[:3]) if not path.exists())

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        reports = read_reports(Summary.folder)
        Summary.failed = sum(report["code"] != 0 for report in reports)
        from mpx.report.tables import print_sweep  # rich, only when there is something to print

        print_sweep(reports)
        if not Summary.failed:
            shutil.rmtree(Summary.folder)


def finish() -> int:
    """The sweep's exit code: 1 if any job failed."""
    return 1 if Summary.failed else 0


def tidy() -> None:
    """Leave no empty folder behind, after a mistake that stopped the sweep before its first job or when all went well."""
    if Summary.folder is None or any(Summary.folder.glob("job*")):
        return
    (Summary.folder / "multirun.yaml").unlink(missing_ok=True)
    for path in (*Summary.made, Summary.folder.parent):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
