"""The tables that a sweep prints at its end: one row per setting, with its seeds together, so that hundreds
of jobs stay readable."""

import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mpx.compare.run import judged_by_record
from mpx.compare.words import UNKNOWN, number, rate_spec
from mpx.render.table import Table, print_table, words
from mpx.settings.compare import DEFAULTS, compare_command, typed_text
from mpx.system.printing import how_many


def print_sweep(reports: list[dict[str, Any]], not_begun: int, plan: dict[str, Any] | None = None) -> None:
    """Print the table, the jobs that did not complete and why, and how to compare.

    not_begun: jobs that fail_fast=true held back. plan: the configuration of until=decided, by which
    mpx.compare is to decide.
    """
    rows = [(setting, *_row(jobs)) for setting, jobs in _by_setting(reports).items()]
    print_table(Table("sweep", words("setting", "jobs", _heading(reports), "samples/s", "folder"), rows))
    _print_bad(reports)
    if not_begun:
        print(f"fail_fast=true: {how_many(not_begun, 'job')} not started", file=sys.stderr)
    for line in _to_compare(reports, plan):
        print(line)


def _print_bad(reports: list[dict[str, Any]]) -> None:
    """Print the jobs that did not complete, one line per cause."""
    bad = [report for report in reports if report["code"]]
    causes: dict[tuple[str, str], list[str]] = {}
    for report in bad:
        causes.setdefault((report["status"], report["line"]), []).append(str(report["job"]))
    if bad:
        print(f"{len(bad)} of {how_many(len(reports), 'job')} did not complete:", file=sys.stderr)
    for (status, line), jobs in causes.items():
        print(f"  job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)} ({status}): {line}", file=sys.stderr)
    if any(report["status"] == "failed" and report["folder"] for report in bad):
        print("The same command with retry_failed=true tries failed runs again.", file=sys.stderr)


def _by_setting(reports: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Setting -> its jobs. A setting is named by the overrides in which it differs from the others."""
    common = (
        set.intersection(*(set(report["overrides"]) for report in reports)) if len(reports) > 1 else set()
    )
    settings: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        differing = [
            override
            for override in report["overrides"]
            if override not in common and not override.startswith("seed=")
        ]
        settings.setdefault(" ".join(differing) or "as given", []).append(report)
    return settings


def _row(jobs: list[dict[str, Any]]) -> tuple[str, str, str, str]:
    """How the jobs of a setting ended, mean and spread of the test metric over completed jobs, mean speed,
    folder.

    The speed is that of the jobs, for a first look; mpx.compare keeps hosts apart.
    """
    statuses = [job["status"] for job in jobs]
    ended = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    completed = _completed(jobs)
    judged = list(map(judged_by_record, completed))
    tests = [run["metrics"].get(metric.name) for run, metric in zip(completed, judged, strict=True)]
    rates = [run["speed"].get("train_samples_per_s") for run in completed]
    rate = _rate(rates) + (", emulated" if any(run["precision"].get("emulated") for run in completed) else "")
    hosts = {
        run["environment"].get("host")
        for run in completed
        if run["speed"].get("train_samples_per_s") is not None
    }
    rate += f", {len(hosts)} hosts" if len(hosts) > 1 else ""
    folders = dict.fromkeys(str(Path(job["folder"]).parent) for job in jobs if job["folder"])
    return ended, _mean(tests, judged[0].spec if judged else ".4f"), rate, "\n".join(folders) or UNKNOWN


def _completed(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of completed runs, of which jobs may have had the same."""
    return list(
        {
            job["folder"]: job["record"] for job in jobs if job["status"] == "completed" and job["record"]
        }.values()
    )


def _heading(reports: list[dict[str, Any]]) -> str:
    """The metric's words, if all completed jobs have the same."""
    names = {(record.get("metric") or {}).get("name") for record in _completed(reports)}
    return name.replace("/", " ") if len(names) == 1 and (name := names.pop()) is not None else "test"


def _mean(values: list[float | None], spec: str) -> str:
    known = [value for value in values if value is not None]
    text = number(mean(known) if known else None, spec)
    return f"{text} ± {number(stdev(known), spec)}" if len(known) > 1 else text


def _rate(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return number(rate := mean(known), rate_spec(rate)) if known else UNKNOWN


def print_found(results: dict[str, Any], file: Path, completed: list[dict[str, Any]]) -> None:
    """Print the result of a search: the best trial, or with two objectives the Pareto front.

    file: where it is stored, with a minus before a metric that should fall. completed: the reports of trials
    that completed. A trial that ends before its first validation, or within its warm-up steps, has no result.
    """
    solutions = (
        results["solutions"]
        if "solutions" in results
        else [{"values": [results["best_value"]], "params": results["best_params"]}]
    )
    if not solutions:
        why = (
            "measured what it looks for (trainer.max_steps, trainer.warmup_steps)"
            if completed
            else "completed"
        )
        print(f"The search has found nothing: no trial {why}.")
        return
    falls = any(judged_by_record(report["record"]).sign < 0 for report in completed)
    also = f"also in {file}, there with a minus, since less is better" if falls else f"also in {file}"
    print(f"Best on the validation split, and fastest, of the search ({also}):")
    for solution in sorted(solutions, key=lambda solution: solution["values"], reverse=True):
        accuracy, *rate = solution["values"]
        accuracy = number(-accuracy if falls else accuracy, "#.4g")
        speed = "".join(f"  {number(value, rate_spec(value))} samples/s" for value in rate)
        print(
            f"  {accuracy}{speed}  {' '.join(f'{key}={value}' for key, value in solution['params'].items())}"
        )


def _to_compare(reports: list[dict[str, Any]], plan: dict[str, Any] | None) -> list[str]:
    """One command per study."""
    studies = {Path(report["folder"]).parents[1] for report in reports if report["status"] == "completed"}
    lines, stated = [], {key: (plan or DEFAULTS)[key] for key in ("control", "margin", "confidence")}
    for study in sorted(studies):
        where = "" if study.parent == Path("outputs") else f" {typed_text('output_dir', str(study.parent))}"
        lines.append(f"Compare the settings: {compare_command(study.name, **stated)}{where}")
    return lines
