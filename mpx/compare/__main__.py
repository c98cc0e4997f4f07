"""Compare the runs of a study: print tables and verdicts, and write report.html, report.md, plots/ and
results.csv to outputs/<study>/.

$ python -m mpx.compare study=default                 # every result.json below outputs/default
$ python -m mpx.compare study=default control=amp-dense margin=0.005
$ python -m mpx.compare study=lr 'control="fp32-dense optimizer.lr=0.05"'  # with one setting of a sweep
$ python -m mpx.compare results=experiments/grid/results.csv               # from a committed table of runs
$ python -m mpx.compare list=true                     # all runs; with study=, status=, setting= some of them
$ python -m mpx.compare remove=failed                 # removes the folders of failed runs
$ python -m mpx.compare --help                        # every key
"""

import os
import shlex
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mpx.compare.collect import collect, newest, run_folders
from mpx.compare.comparison import Comparison
from mpx.compare.groups import by_label, by_pair, ran, settings
from mpx.compare.listing import remove_failed, show_runs
from mpx.compare.run import AUTO, Run
from mpx.compare.table import DIFFERENCES, RESULTS, differences_csv, read_results, results_csv
from mpx.errors import UserError, nearest
from mpx.settings.compare import COMPARE, LISTING, check_compare, typed_text
from mpx.settings.front_door import CONF, errors_in_one_line, start_once, words_of
from mpx.settings.values import key_of
from mpx.system.printing import how_many
from mpx.system.whole_file import below_output_dir, try_writing, write_whole

MAX_LISTED = 20  # settings that an error lists
LeftOut = list[tuple[str, str]]  # (folder, reason)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="compare")
def job(cfg: DictConfig) -> None:
    # inside `job`, since Hydra prints an exception that leaves it
    with errors_in_one_line(COMPARE, "mpx.compare"):
        keys = {str(key): cfg[key] for key in cfg}
        words: Any = HydraConfig.get()  # a DictConfig, which Hydra annotates as its schema
        overrides = words_of(words)
        check_compare(keys, overrides)
        listing = {key: keys.pop(key) for key in LISTING}
        if listing.pop("list") or listing["remove"]:
            _list(keys, overrides, **listing)
        else:
            run(**keys)


def _list(
    keys: dict[str, Any], overrides: list[str], remove: str | None, status: str | None, setting: str | None
) -> None:
    """List the runs of all studies, or of the one that is named; or remove those that failed."""
    study = keys["study"] if "study" in map(key_of, overrides) else None
    if remove is None:
        show_runs(keys["output_dir"], study, status, setting)
        return
    removed = remove_failed(keys["output_dir"], study, setting)
    for folder in removed:
        print(f"removed {folder}")
    print(f"{how_many(len(removed), 'run')} removed")


def run(
    study: str, results: str | None, control: str, metric: str, output_dir: str, **how: Any
) -> Comparison:
    """Collect, compare, show, write, return. Heavy imports wait until the runs and the control are known to
    exist.

    how: the other keys of conf/compare.yaml.
    """
    runs, left_out, folder = _read_file(Path(results)) if results else _read_study(Path(output_dir), study)
    control = " ".join(control.split())  # text copied from a terminal may contain line breaks
    _check_control(runs, by_label(runs, control))
    from mpx.compare.aggregate import compare, question
    from mpx.render.comparison_tables import print_comparison

    if not results:
        with below_output_dir(folder):
            try_writing(folder)
    asked, name = question(control=control, metric=metric, **how), folder.name if results else study
    comparison = compare(runs, asked, study=name, folder=folder, left_out=left_out)
    print_comparison(comparison)
    if not results:
        _write(comparison, runs)
    return comparison


def _write(comparison: Comparison, runs: list[Run]) -> None:
    from mpx.render.report import write  # matplotlib

    folder = comparison.folder
    tables = {RESULTS: results_csv(runs), DIFFERENCES: differences_csv(comparison)}
    with below_output_dir(folder):
        for file, text in tables.items():
            write_whole(folder / file, text)
        write(comparison)
    print(f"written to {folder}: report.html, report.md, plots/, {', '.join(tables)}")
    print(f"tensorboard --logdir {shlex.quote(str(folder))} shows the runs, and their comparison in _report")


def _read_study(output_dir: Path, study: str) -> tuple[list[Run], LeftOut, Path]:
    """Raises UserError if there is no such study, or no run in it counts."""
    folder = output_dir / study
    # Path.is_dir raises for a name that is too long or a folder without read permission
    if not os.path.isdir(folder):
        raise UserError(_no_study(output_dir, study))
    runs, left_out = collect(folder)
    if not runs:
        why = (
            f" {len(left_out)} left out, the first: {left_out[0][0]} {left_out[0][1].rstrip('.')}."
            if left_out
            else ""
        )
        raise UserError(
            f"study={study}: no finished run in {folder}.{why} python -m mpx.train study={study} makes one."
        )
    return runs, left_out, folder


def _no_study(output_dir: Path, study: str) -> str:
    _, folders, _ = next(os.walk(output_dir), ("", (), ()))  # empty where it does not exist or cannot be read
    known = sorted(name for name in folders if name[0] not in "._" and run_folders(output_dir / name))
    begin = f"No study is in {output_dir} yet; python -m mpx.train study={study} begins one."
    names = f"There are: {', '.join(known)}." if known else begin
    return f"study={study}: {output_dir / study} is not there.{nearest(study, known)} {names}"


def _read_file(path: Path) -> tuple[list[Run], LeftOut, Path]:
    """Raises UserError for a file that cannot be read or has no runs."""
    runs, older = newest(read_results(path))
    if not runs:
        raise UserError(f"results={path} has no rows. Give another results=FILE.")
    return runs, older, path.resolve().parent


def _check_control(runs: list[Run], control: str) -> None:
    """Raises UserError if no run has this control."""
    if ran(runs, control):
        return
    if " " in control:  # a full setting: suggest settings in the form the user must type
        known = [typed_text("control", name) for pair in by_pair(runs).values() for name in settings(pair)]
        what, guess = "setting", nearest(typed_text("control", control), known)
    else:
        known = sorted({run.plain for run in runs})
        what, guess = "precision and sparsity", nearest(control.lower(), [AUTO, *known])
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    raise UserError(
        f"control={control}: no run has this {what}.{guess} There are: {', '.join(known[:MAX_LISTED])}{more}."
    )


def main() -> None:
    start_once(job, COMPARE, "mpx.compare", "start it once per study")


if __name__ == "__main__":
    main()
