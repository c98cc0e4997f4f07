"""Train one setting of model, data, precision and sparsity, test it, and record it in
outputs/<study>/<setting>/seed<N>/.

$ python -m mpx.train precision=amp sparsity=2of4  # the main job, on digits that need no download
$ python -m mpx.train task=lstm_sst2 data.root=DIR precision=amp_bf16  # another tuned pair of model and data
$ python -m mpx.train model=resnet18 data=cifar10 trainer.max_epochs=5 # any pair
$ python -m mpx.train -m study=formats precision=fp32,amp seed=0,1,2   # a sweep; each job has its own process
$ python -m mpx.train -m experiment=grid data.root=DIR                 # a ready-made study
$ python -m mpx.train -m study=formats precision=fp32,amp until=decided  # seeds in rounds, until each is decided
$ python -m mpx.train module._target_=pkg.Module datamodule._target_=pkg.Data metric=val/dice precision=amp  # your own project
$ python -m mpx.train --help                                           # every group and key; --help sparsity: one group
"""  # noqa: E501

import sys
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from mpx import sweep
from mpx.settings import check
from mpx.settings.front_door import (
    CONF,
    errors_in_one_line,
    expect_schemas,
    multirun,
    multirun_first,
    read_words,
    words_of,
)
from mpx.settings.project import is_project, with_project
from mpx.system.environment_variables import let_hydra_raise, start_sweep
from mpx.system.launch import become_torchrun, launch, leave, processes, refuse_sweep
from mpx.system.printing import replace_unprintable
from mpx.training import outcome


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def job(cfg: DictConfig) -> None:
    """Train one setting: check `cfg`, run it in this process and exit with its code.

    For a job of a cluster submitit calls this. It then starts a process of the job's own.
    """
    hydra_config: Any = HydraConfig.get()  # a DictConfig, which Hydra annotates as its schema
    if hydra_config.mode == RunMode.MULTIRUN:
        from mpx.sweep.jobs import start_child

        start_child()
        return
    with errors_in_one_line(told=tell_sweep):  # Hydra would print exceptions that leave this function
        sweep.check_experiment(hydra_config)
        check(cfg, words_of(hydra_config))
        sweep.check_single(cfg)
        if cfg.trainer.num_nodes == 1 and launch().by is None and (count := processes(cfg.trainer)) > 1:
            become_torchrun(count, sys.argv[1:])
        if is_project(cfg):
            from mpx.training.one_lightning import use_one_lightning

            use_one_lightning()
        leave(outcome.run_and_record(cfg))


def tell_sweep(line: str) -> None:
    """Report an error to the sweep that this process is a job of, if any, for its summary."""
    sweep.report("failed", None, line)


def main() -> None:
    """Prepare Hydra and check the words of the command line, then run `job`: once, or with -m once for each
    job of a sweep."""
    replace_unprintable()
    let_hydra_raise()
    expect_schemas()
    multirun_first()
    start_sweep()
    try:
        with errors_in_one_line(told=tell_sweep), sweep.to_the_end():
            read_words(docstring=__doc__ or "")
            sys.argv[1:] = with_project(sys.argv[1:])
            if multirun():
                refuse_sweep()
                sweep.register()
            job()
        sys.exit(sweep.exit_code())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
