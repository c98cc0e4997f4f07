"""What a sweep prints of its runs: a line of each, and a table with one row per setting, so that hundreds of
runs stay readable."""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

from mpx.compare.comparison import estimate
from mpx.compare.words import spread
from mpx.render.comparison_tables import marked
from mpx.render.table import Column, Table, print_table, words
from mpx.runs.result import judged_by_record
from mpx.settings.compare import DEFAULTS, compare_command, typed_text
from mpx.settings.fields import NAMED
from mpx.settings.values import key_of
from mpx.system.printing import UNKNOWN, how_many, number, rate, span

Report = dict[str, Any]  # of a job, with the record of its run


def line_of(report: Report, swept: set[str]) -> str:
    """`lstm amp-2of4 seed 1  0.9861  2,860 samples/s  12 s`. swept: the keys whose values differ between the
    jobs.
    """
    record = report["record"]
    seed = f" seed {record['setting']['seed']}" if record else ""
    name = f"{_setting(report, swept)}{seed}"
    if report["status"] != "completed" or not record:
        said = report["skipped"] or report["line"].startswith(report["status"])
        return f"{name}  {'' if said else report['status'] + ': '}{report['line']}"
    metric = judged_by_record(record)
    took = "finished earlier" if report["skipped"] else span(report["seconds"])
    return "  ".join((name, number(record["metrics"].get(metric.name), metric.spec), _rate([record]), took))


def _setting(report: Report, swept: set[str]) -> str:
    """`lstm amp-2of4 optimizer.lr=0.1`: the model, precision and sparsity, and what else differs."""
    if not report["record"]:
        return " ".join(word for word in report["overrides"] if key_of(word) in swept | {"seed"})
    setting = report["record"]["setting"]
    names = [setting["model"], *([setting["data"]] if {"data", "task"} & swept else [])]
    changes = [
        f"{key}={value}"
        for key, value in setting.items()
        if key not in (*NAMED, "seed") and any(f"{key}.".startswith(f"{one}.") for one in swept)
    ]
    return " ".join([*names, f"{setting['precision']}-{setting['sparsity']}", *changes])


def print_sweep(reports: list[Report], swept: set[str], plan: dict[str, Any] | None = None) -> None:
    """Print the table, how many runs did not complete, and how to compare. plan: the configuration of
    until=decided, by which mpx.compare is to decide.
    """
    settings: dict[str, list[Report]] = {}
    for report in reports:
        settings.setdefault(_setting(report, swept), []).append(report)
    columns = [*words("setting", "runs"), Column(_heading(reports)), Column("samples/s")]
    print_table(Table("", columns, [(setting, *_row(jobs)) for setting, jobs in settings.items()]))
    bad = [report for report in reports if report["code"]]
    if bad:
        print(f"{len(bad)} of {how_many(len(reports), 'run')} did not complete", file=sys.stderr)
    if any(report["status"] == "failed" and report["folder"] for report in bad):
        print("The same command with retry_failed=true tries failed runs again.", file=sys.stderr)
    for line in _to_compare(reports, plan):
        print(line)


def _row(jobs: list[Report]) -> tuple[str, str, str]:
    """How the jobs of a setting ended; mean and spread of the test metric, and mean speed, of those that
    completed.

    The speed is for a first look; mpx.compare keeps hosts apart.
    """
    statuses = [job["status"] for job in jobs]
    ended = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    records = _completed(jobs)
    judged = list(map(judged_by_record, records))
    tests = [run["metrics"].get(metric.name) for run, metric in zip(records, judged, strict=True)]
    known = estimate([value for value in tests if value is not None])
    return ended, spread(known, judged[0].spec if judged else None), _rate(records, unit="")


def _completed(jobs: list[Report]) -> list[dict[str, Any]]:
    """The records of completed runs, of which jobs may have had the same."""
    done = [job for job in jobs if job["status"] == "completed" and job["record"]]
    return list({job["folder"]: job["record"] for job in done}.values())


def _heading(reports: list[Report]) -> str:
    """The metric's words, if all completed jobs have the same."""
    names = {judged_by_record(record).words for record in _completed(reports)}
    return names.pop() if len(names) == 1 else "test"


def _rate(records: list[dict[str, Any]], unit: str = " samples/s") -> str:
    """The mean speed; marked where other programs used the device, or a format was emulated."""
    known = [value for run in records if (value := run["speed"].get("train_samples_per_s")) is not None]
    if not known:
        return UNKNOWN
    shared = any(run["speed"].get("exclusive") is False for run in records)
    emulated = any(run["precision"].get("emulated") for run in records)
    return rate(mean(known), unit) + marked("shared" if shared else "", "emulated" if emulated else "")


def _to_compare(reports: list[dict[str, Any]], plan: dict[str, Any] | None) -> list[str]:
    """One command per study."""
    studies = {Path(report["folder"]).parents[1] for report in reports if report["status"] == "completed"}
    lines, stated = [], {key: (plan or DEFAULTS)[key] for key in ("control", "margin", "confidence")}
    for study in sorted(studies):
        where = "" if study.parent == Path("outputs") else f" {typed_text('output_dir', str(study.parent))}"
        lines.append(f"Compare the settings: {compare_command(study.name, **stated)}{where}")
    return lines
