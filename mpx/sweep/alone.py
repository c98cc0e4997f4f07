"""After the last job of a sweep with gpu_share: measure the speed of each setting once, with nothing else on the device.

The figures go into the records of all of the setting's runs, which are marked until then. An interrupted sweep therefore goes on with the
settings whose runs still have the mark.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from mpx import environment_variables
from mpx.record.result import ALONE, BESIDE, place_of, write_result
from mpx.runs.folder import LOCK, read_result
from mpx.sweep import warm
from mpx.sweep.child import command, one_device, read, wait
from mpx.sweep.gpus import VISIBLE, visible_gpus
from mpx.sweep.job_report import FILE

PATIENCE = 10  # seconds to wait for a record that another process has locked


@dataclass(frozen=True)
class RunsOfSetting:
    """The completed runs of one setting, of which some are not measured alone yet."""

    reports: Sequence[dict[str, Any]]  # of its jobs, the first seed first
    records: Sequence[dict[str, Any]]

    @property
    def name(self) -> str:
        return Path(self.reports[0]["folder"]).parent.name


def measure_alone(config: DictConfig, reports: list[dict[str, Any]], sweep: Path) -> int:
    """Measure what is missing, and put it into records and `reports`. Returns the number of settings that could not be measured.

    config: of the sweep. sweep: its folder.
    """
    warm.end()  # no starter of the sweep's jobs has the environment in which speed is measured alone
    missing, settings = 0, unmeasured(reports)
    for number, setting in enumerate(settings, 1):
        print(f"measuring speed alone: {number} of {len(settings)}, {setting.name}", flush=True)
        elsewhere = None
        try:
            found = _measure(config, setting, sweep / f"speed{number}")
            if (why := _useless(found)) is None:
                why = elsewhere = _elsewhere(found, setting)
            if why is None:
                why = _write(found["record"]["speed"], setting)
        except OSError as error:  # the disk of the sweep's folder is full
            why = str(error)
        if why is not None:
            missing += 1
            again = "" if elsewhere else ", the same command tries again"
            print(f"{setting.name}: speed not measured{again}: {why}", file=sys.stderr, flush=True)
    return missing


def unmeasured(reports: list[dict[str, Any]]) -> list[RunsOfSetting]:
    """The settings with a run whose speed was measured beside others. A run that ended within its warm-up has no speed."""
    found: dict[Path, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for report in reports:
        record = read_result(Path(report["folder"])) if report["status"] == "completed" else None
        if record is not None and "measured" in record["speed"] and _own(record)["train_samples_per_s"] is not None:
            found.setdefault(Path(report["folder"]).parent, []).append((report, record))
    settings = [RunsOfSetting(*zip(*sorted(runs, key=lambda run: run[1]["setting"]["seed"]), strict=True)) for runs in found.values()]
    return [setting for setting in settings if any(record["speed"]["measured"] == BESIDE for record in setting.records)]


def _own(record: dict[str, Any]) -> dict[str, Any]:
    """The speed that the run itself had, beside others."""
    return record["speed"].get("beside", record["speed"])


def _measure(config: DictConfig, setting: RunsOfSetting, folder: Path) -> dict[str, Any]:
    """Returns the report of the process that measures."""
    folder.mkdir(exist_ok=True)
    environment = os.environ | environment_variables.for_job(folder / FILE) | environment_variables.speed_is_measured("alone")
    if one_device(config.trainer) and len(gpus := visible_gpus()) > 1:
        environment |= {VISIBLE: gpus[0]}
    words = command(config.hydra, setting.reports[0]["overrides"], quiet=True)
    return read(folder / FILE, wait(warm.start(words, environment, will_train=True)))


def _useless(found: dict[str, Any]) -> str | None:
    """Why the report `found` has no speed of its own; None if it has."""
    if found["status"] != "completed":
        return found["line"]
    speed = found["record"]["speed"]
    return speed["exclusive_reason"] if speed["exclusive"] is False else None


def _elsewhere(found: dict[str, Any], setting: RunsOfSetting) -> str | None:
    """What differs where the report `found` was made from where the setting was trained; None: nothing."""
    here = found["record"]["place"]
    for place in (place_of(record["environment"]) for record in setting.records):
        if differing := [f"{theirs}, here {mine}" for theirs, mine in zip(place, here, strict=True) if theirs != mine]:
            return f"it was trained with {'; '.join(differing)}. Start the sweep with that again, or use another study=."
    return None


def _write(speed: dict[str, Any], setting: RunsOfSetting) -> str | None:
    """Write the speed into the records of all runs. Returns why it could not."""
    measured = ALONE.format(seed=setting.records[0]["setting"]["seed"])
    unknown = {"time_to_train_s": None, "time_to_train_s_reason": f"trained {BESIDE}", "time_to_train_parts_s": None}
    for report, record in zip(setting.reports, setting.records, strict=True):
        folder = Path(report["folder"])
        new = record | {"speed": speed | unknown | {"measured": measured, "beside": _own(record)}}
        try:
            with FileLock(folder / LOCK, timeout=PATIENCE):
                if (read_result(folder) or {}).get("environment") != record["environment"]:
                    return f"{folder} holds another run by now"
                write_result(folder, new)
        except (Timeout, OSError) as error:
            return f"{folder} cannot be written ({getattr(error, 'strerror', None) or 'in use by another process'})"
        report["record"]["speed"] = new["speed"]
    return None
