"""`until=decided`: a sweep in rounds. Each trains further seeds of the settings that are not decided yet, and
of their control.

After each round, mpx.compare finds in the study's records what is decided and how many seeds come next.
Nothing else is kept from round to round. So a sweep that was killed goes on when it is started again: the
jobs of finished runs end at once.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from mpx.compare.aggregate import compare, question
from mpx.compare.collect import collect
from mpx.compare.comparison import Group, Row
from mpx.compare.groups import by_label, refuse_other_contents
from mpx.compare.looks import Plan, plan_of
from mpx.compare.run import Run
from mpx.compare.words import decided, title
from mpx.errors import UserError
from mpx.private.hydra import register_plugin
from mpx.settings.check import check_looks
from mpx.settings.values import key_of
from mpx.sweep.checks import grid
from mpx.sweep.progress import IN_USE, each_report, running
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
        if not self.asked:
            wanted = dict.fromkeys(settings, self.plan.sizes[0])
        else:
            runs, _ = collect(self.study)
            further = self._look(runs)
            folders, in_use = {}, set()
            for report in each_report(self.sweep):
                if report["folder"]:
                    folders[_setting(report)] = _folder(report["folder"])
                if report["status"] == IN_USE:
                    in_use.add(tuple(report["overrides"]))
            self._say_missing(folders, runs, in_use)
            wanted = {setting: further.get(folders[setting], 0) for setting in settings if setting in folders}
        before = self.asked
        self.asked = before | {
            setting: max(seeds, before.get(setting, 0)) for setting, seeds in wanted.items()
        }
        new = [
            (seed, setting)
            for setting, seeds in self.asked.items()
            for seed in range(before.get(setting, 0), seeds)
        ]
        return [[*setting, f"seed={seed}"] for seed, setting in sorted(new, key=lambda job: job[0])]

    def _say_missing(
        self, folders: Mapping[Setting, str], runs: Sequence[Run], in_use: Collection[Setting]
    ) -> None:
        """A setting takes part in a look when all of its seeds have a result, and so does its control.

        folders: their names. in_use: overrides of jobs that another process trains.
        """
        recorded = {(_folder(run.folder), run.seed) for run in runs}
        for setting, seeds in self.asked.items():
            if missing := [
                str(seed) for seed in range(seeds) if (folders.get(setting), seed) not in recorded
            ]:
                which = f"{' '.join(setting)}: seed {', '.join(missing)} has no result, so this setting waits"
                others = all((*setting, f"seed={seed}") in in_use for seed in missing)
                again = (
                    "goes on once the other sweep has ended" if others else "with retry_failed=true goes on"
                )
                print(f"{which}, as do all if it is their control. The same command {again}.", flush=True)

    def _look(self, runs: Sequence[Run]) -> dict[str, int]:
        """Folder of each undecided setting -> the number of seeds that it needs next.

        Prints what is decided.
        """
        refuse_other_contents(runs)
        control = by_label(runs, self.plan.control)
        asked = question(control=control, margin=self.plan.margin, confidence=self.plan.confidence)
        comparison = compare(runs, asked, study=self.study.name, folder=self.study)
        return {name: seeds for group in comparison.groups for name, seeds in _seeds_wanted(group).items()}

    def cost(self) -> str:
        """What the study took, beside a single test of about the same power."""
        runs, _ = collect(self.study)
        new = [report for report in each_report(self.sweep) if not report["skipped"]]
        spent, single = span(sum(report["seconds"] for report in new)), self.plan.fixed_seeds()
        return (
            f"until=decided: {how_many(len(runs), 'run')}, {len(new)} of them now, in {spent} of jobs. A "
            "single test of about that "
            f"power takes {single} seeds of each setting, {how_many(single * len(self.asked), 'run')}"
        )


def _setting(report: Mapping[str, Any]) -> Setting:
    return tuple(report["overrides"][:-1])


def _seeds_wanted(group: Group) -> dict[str, int]:
    """Folder of each setting that is compared -> the number of seeds that it needs next; none if the group's
    comparison has ended."""
    control, *rows = group.rows
    # None: every run of the control has diverged.
    if group.control is None or not rows or control.metric is None:
        print(f"{title(group)}: {group.train_verdict}", flush=True)
        return {}
    for row in rows:
        print(f"{title(group)}, {row.setting}: {decided(row.decision)}", flush=True)
    looks = [row.decision.look if row.decision else None for row in rows]
    seeds = {
        _folder_of(row): look.further
        for row, look in zip(rows, looks, strict=True)
        if look is not None and look.further
    }
    return seeds | ({_folder_of(control): max(seeds.values())} if seeds else {})


def _folder_of(row: Row) -> str:
    return _folder(row.runs[0].folder)


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
            running[-1].expect(begun + len(jobs))
            running[-1].start("round", len(jobs))
            self._launch(jobs, begun)
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
