"""`until=decided`: a sweep in rounds. Each trains further seeds of the settings that are not decided yet, and
of their control.

After each round, mpx.compare finds in the study's records what is decided and how many seeds come next.
Nothing else is kept from round to round. So a sweep that was killed goes on when it is started again: the
jobs of finished runs end at once.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from mpx.compare.aggregate import compare, question
from mpx.compare.collect import collect
from mpx.compare.comparison import Group
from mpx.compare.looks import Plan, plan_of
from mpx.compare.run import Run
from mpx.compare.words import title
from mpx.errors import UserError
from mpx.private.hydra import register_plugin
from mpx.settings.check import check_looks
from mpx.settings.values import key_of
from mpx.sweep.checks import grid
from mpx.sweep.progress import each_report, running
from mpx.system.printing import how_many, span

TARGET = "hydra_plugins.mpx.Rounds"  # of conf/hydra/sweeper/decided.yaml
ONE = ("study", "output_dir", "until")  # what all jobs of a sweep in rounds share
Setting = tuple[str, ...]  # overrides, without the seed
AGAIN = ("new", "overwrite")  # values of if_exists


class Looks:
    """config: of the sweep.

    Raises UserError for an impossible plan, for a study with runs whose results may have been seen before its
    looks were planned, and for training the runs of a study again.
    """

    def __init__(self, config: DictConfig) -> None:
        check_looks(config.until)
        self.plan = Plan(**config.until)
        self.study, self.sweep = Path(config.output_dir) / config.study, Path(config.hydra.sweep.dir)
        self.asked: dict[Setting, int] = {}  # number of seeds that each setting has after the present round
        runs, _ = collect(self.study)
        self.new = not self.study.is_dir()  # otherwise another sweep may be training its first runs
        if any(run.looks is None for run in runs):
            raise UserError(
                f"study={config.study} has runs that no plan of looks asked for, as by seed=. Use another "
                "study=NAME."
            )
        plan = plan_of(runs)
        if plan is not None and plan != self.plan:
            plans = f"was planned with {plan.text}, and this plan is {self.plan.text}"
            raise UserError(f"study={config.study} {plans}. Use another study=NAME, or the same plan.")
        if runs and config.if_exists in AGAIN:
            again = "trains seeds again whose results a look may have seen, and a plan looks at each once"
            raise UserError(f"if_exists={config.if_exists} {again}. Leave it out, or use another study=NAME.")

    def further_jobs(self, settings: Sequence[Setting]) -> list[list[str]]:
        """The overrides of each job of the next round, seed by seed, so that a round that is cut short is
        even; empty after the last."""
        before = self.asked
        if before:
            runs, _ = collect(self.study)
            further, folders = self._look(runs), self._folders()
            self._say_missing(folders, runs)
            wanted = {setting: further.get(folders[setting], 0) for setting in settings if setting in folders}
        else:
            wanted = dict.fromkeys(settings, self.plan.sizes[0])
        self.asked = before | {
            setting: max(seeds, before.get(setting, 0)) for setting, seeds in wanted.items()
        }
        new = [
            (seed, setting)
            for setting, seeds in self.asked.items()
            for seed in range(before.get(setting, 0), seeds)
        ]
        return [[*setting, f"seed={seed}"] for seed, setting in sorted(new, key=lambda job: job[0])]

    def _folders(self) -> dict[Setting, str]:
        """The name of each setting's folder, from the reports of its jobs."""
        reports = [report for report in each_report(self.sweep) if report["folder"]]
        return {tuple(report["overrides"][:-1]): _folder(report["folder"]) for report in reports}

    def _say_missing(self, folders: Mapping[Setting, str], runs: Sequence[Run]) -> None:
        """A setting takes part in a look when all of its seeds have a result, and so does its control."""
        recorded = {(_folder(run.folder), run.seed) for run in runs}
        for setting, seeds in self.asked.items():
            seeds_of = [seed for seed in range(seeds) if (folders.get(setting), seed) not in recorded]
            if seeds_of:
                which = f"{' '.join(setting)}: seed {', '.join(map(str, seeds_of))} has no result"
                waits = "so this setting waits, as do all if it is their control"
                print(f"{which}, {waits}. The same command with retry_failed=true goes on.", flush=True)

    def _look(self, runs: Sequence[Run]) -> dict[str, int]:
        """Folder of each undecided setting -> the number of seeds that it needs next.

        Prints what is decided.
        """
        plan = self.plan
        asked = question(control=plan.control, margin=plan.margin, confidence=plan.confidence)
        comparison = compare(runs, asked, study=self.study.name, folder=self.study)
        return {name: seeds for group in comparison.groups for name, seeds in _seeds_wanted(group).items()}

    def cost(self) -> str:
        """What the study took."""
        runs, _ = collect(self.study)
        new = [report for report in each_report(self.sweep) if not report["skipped"]]
        spent = span(sum(report["seconds"] for report in new))
        return f"until=decided: {how_many(len(runs), 'run')}, {len(new)} of them now, in {spent}."


def _seeds_wanted(group: Group) -> dict[str, int]:
    """Folder of each setting that is compared -> the number of seeds that it needs next; none if the group's
    comparison has ended. Prints one line."""
    control, *rows = group.rows
    looks = {row.setting: row.decision.look for row in rows if row.decision and row.decision.look}
    newest = max(looks.values(), key=lambda look: look.number, default=None)
    # Without a metric every run of the control has diverged.
    if group.control is None or control.metric is None or newest is None:
        print(f"{title(group)}: {group.train_verdict}", flush=True)
        return {}
    parts, seeds = [], {}
    for row in rows:
        if row.decision and row.decision.look and row.decision.look.number == newest.number:
            parts.append(f"{row.setting} {row.decision.verdict}")
            if row.decision.look.further:
                seeds[_folder(row.runs[0].folder)] = row.decision.look.further
    print(f"{newest.words}, {title(group)}: {'; '.join(parts)}", flush=True)
    return seeds | ({_folder(control.runs[0].folder): max(seeds.values())} if seeds else {})


def _folder(run: str | None) -> str:
    """The name of the setting's folder.

    run: that of one of its runs, which a study that is read from its files has.
    """
    return Path(run or "").parent.name


class Rounds(Sweeper):
    """A grid of settings, whose seeds come in rounds. max_batch_size, params: as of Hydra's own sweeper."""

    def __init__(self, max_batch_size: int | None, params: Mapping[str, str] | None) -> None:
        self.max_batch_size, self.params = max_batch_size, params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.settings = config
        plugins = Plugins.instance()
        self.jobs = plugins.instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Raises UserError for a grid over what all rounds share, and for a study with runs of before."""
        _check(arguments)
        looks, begun = Looks(self.settings), 0
        params = {key: value for key, value in self.params.items() if key != "seed"}
        settings = list(itertools.product(*grid(params, arguments)))
        if looks.new and len(settings) == 1:
            raise UserError(
                "until=decided compares settings, and this sweep has one. Give several values, as "
                "precision=fp32,amp_bf16."
            )
        while jobs := looks.further_jobs(settings):
            running[-1].total = begun + len(jobs)
            if not begun:
                running[-1].start()
            self._launch(jobs, begun)
            running[-1].look()
            begun += len(jobs)
        print(looks.cost(), flush=True)

    def _launch(self, jobs: Sequence[Sequence[str]], number: int) -> None:
        """number: of the first job."""
        most = self.max_batch_size or len(jobs)
        for start in range(0, len(jobs), most):
            returned: Sequence[JobReturn] = self.jobs.launch(
                jobs[start : start + most], initial_job_idx=number + start
            )
            for job in returned:
                _ = job.return_value  # raises what the launcher could not do


def _check(arguments: Sequence[str]) -> None:
    for word in arguments:
        key = key_of(word)
        if key == "seed":
            raise UserError(
                f"{word}: until=decided chooses the seeds itself. Leave seed out; until.max_seeds=N is the "
                "most for a setting."
            )
        if key.split(".")[0] in ONE and any(len(values) > 1 for values in grid({}, [word])):
            raise UserError(f"{word}: with until=decided a sweep has one {key}. Start one sweep for each.")


def register() -> None:
    """Let until=decided choose this sweeper."""
    register_plugin(Rounds, TARGET)
