"""`until=decided`: a sweep in rounds. Each trains further seeds of the settings that are not decided yet, and of their control.

Nothing but the study's records (looks.py reads them) is kept from round to round. So a sweep that was killed goes on when it is started
again: the jobs of finished runs end at once.
"""

import itertools
from collections.abc import Mapping, Sequence

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.private.hydra import register_plugin
from mpx.settings.values import key_of
from mpx.sweep import cluster
from mpx.sweep.progress import write_size
from mpx.sweep.size import grid, on_all_machines

TARGET = "hydra_plugins.mpx.Rounds"  # of conf/hydra/sweeper/decided.yaml
ONE = ("study", "output_dir", "until")  # what all jobs of a sweep in rounds share


class Rounds(Sweeper):
    """A grid of settings, whose seeds come in rounds. max_batch_size, params: as of Hydra's own sweeper."""

    def __init__(self, max_batch_size: int | None, params: Mapping[str, str] | None) -> None:
        self.max_batch_size, self.params = max_batch_size, params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> None:
        """Raises UserError for a grid over what all rounds share, and for a study with runs of before."""
        _check(arguments)
        from mpx.sweep.looks import Looks  # NumPy and SciPy

        looks, begun = Looks(self.config), 0
        params = {key: value for key, value in self.params.items() if key != "seed"}
        settings = list(itertools.product(*grid(params, arguments)))
        if looks.new and len(settings) == 1:
            raise UserError("until=decided compares settings, and this sweep has one. Give several values, as precision=fp32,amp_bf16.")
        while jobs := looks.further_jobs(settings):
            write_size(looks.sweep, begun + len(jobs), on_all_machines(self.config.hydra, len(jobs)))
            cluster.announce(self.config.hydra, len(jobs), "round")
            self._launch(jobs, begun)
            begun += len(jobs)
        print(looks.cost(), flush=True)

    def _launch(self, jobs: Sequence[Sequence[str]], number: int) -> None:
        """number: of the first job."""
        most = self.max_batch_size or len(jobs)
        for start in range(0, len(jobs), most):
            returned: Sequence[JobReturn] = self.launcher.launch(jobs[start : start + most], initial_job_idx=number + start)
            for job in returned:
                _ = job.return_value  # raises what the launcher could not do


def _check(arguments: Sequence[str]) -> None:
    for word in arguments:
        key = key_of(word)
        if key == "seed":
            raise UserError(f"{word}: until=decided chooses the seeds itself. Leave seed out; until.max_seeds=N is the most for a setting.")
        if key.split(".")[0] in ONE and any(len(values) > 1 for values in grid({}, [word])):
            raise UserError(f"{word}: with until=decided a sweep has one {key}. Start one sweep for each.")


def register() -> None:
    """Let until=decided choose this sweeper."""
    register_plugin(Rounds, TARGET)
