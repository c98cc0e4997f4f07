"""Train one setting of model, data, precision and sparsity, test it, and record it in outputs/<study>/<setting>/seed<N>/.

$ python -m mpx.train precision=amp sparsity=2of4                      # the main job, on embedded real data
$ python -m mpx.train task=lstm_sst2 data.root=DIR precision=amp_bf16  # another tuned pair of model and data
$ python -m mpx.train model=resnet18 data=cifar10 trainer.max_epochs=5 # any pair
$ python -m mpx.train -m seed=0,1,2 precision=fp32,amp                 # a sweep, each job in a fresh process
$ python -m mpx.train -m experiment=precision_grid data.root=DIR        # a ready-made study
$ python -m mpx.train --help                                           # every group and key
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from mpx import sweep
from mpx.run import outcome
from mpx.settings import check, one_line

PACKAGE = Path(__file__).resolve().parent
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"  # from the wheel, or from the repository


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def job(cfg: DictConfig) -> sweep.Objectives:
    """One run, or, in a sweep, the start of the process that runs it, and for a sweeper that searches how good it was."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return sweep.start_child(cfg)
    with errors_in_one_line():  # here, because Hydra would announce an exception that leaves this function
        sweep.check_experiment(HydraConfig.get())
        check(cfg, HydraConfig.get().overrides.task)
        sys.exit(outcome.run_and_record(cfg))


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn a mistake in the configuration into one line on stderr and exit code 2; HYDRA_FULL_ERROR=1 shows the traceback."""
    try:
        yield
    except Exception as error:
        line = one_line(error)
        if line is None or os.environ.get("MPX_TRACEBACK") == "1":
            raise
        print(f"error: {line}", file=sys.stderr)
        sweep.report("failed", None, line)
        sys.exit(2)


def main() -> None:
    os.environ.setdefault("MPX_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR", "0"))  # set already in a process that mpx started
    os.environ["MPX_SWEEP"] = str(os.getpid())  # names the folder in which this process keeps a sweep's reports
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, where it would print its own message and exit
    try:
        with errors_in_one_line():
            job()
        sys.exit(sweep.finish())
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        sweep.tidy()


if __name__ == "__main__":
    main()
