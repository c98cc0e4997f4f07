"""conf/experiment: every job of every grid is one that a run accepts, and a study runs as a user starts
it.
"""

import functools

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_class
from refused import assert_refused

from mpx.settings import check
from mpx.train import CONF

EXPERIMENTS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))
GRIDS = {"grid": 240, "batch_size": 144, "loss_scaling": 18}


def jobs(experiment, *given):
    """The overrides of each job, as Hydra's sweeper expands grid and command line."""
    sweeper = compose("train", [f"experiment={experiment}"], return_hydra_config=True).hydra.sweeper
    overrides = OverridesParser.create().parse_overrides(
        [f"{key}={value}" for key, value in sweeper.params.items()] + list(given)
    )
    (batch,) = get_class(sweeper._target_).split_arguments(overrides, max_batch_size=None)
    return batch


@functools.cache
def configs(experiment):
    """(overrides, configuration) of each job of the grid with one seed, which has no part in whether a run is
    valid."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return [
            (words, compose("train", [*words, f"experiment={experiment}"]))
            for words in jobs(experiment, "seed=0")
        ]


def test_each_experiment_is_known_here():
    assert sorted(GRIDS) == EXPERIMENTS


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=pytest.mark.slow if jobs > 50 else ()) for name, jobs in GRIDS.items()],
)
def test_every_job_of_the_grid_is_a_valid_run(experiment):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert len(jobs(experiment)) == GRIDS[experiment]
    for overrides, cfg in configs(experiment):
        assert cfg.study == experiment
        check(cfg, overrides)


def test_a_single_run_of_a_grid_says_how_to_start_it(train):
    ran = train("experiment=grid", "seed=0")
    assert_refused(
        ran,
        "error: experiment=grid is a grid over seed, task, precision, sparsity, and this is a single run. "
        "Start all of it with "
        "python -m mpx.train -m experiment=grid, or give one value each to task, precision, sparsity.",
    )
