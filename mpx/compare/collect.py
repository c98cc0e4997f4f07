"""Read every result.json below a folder, and say why some runs are left out."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mpx.compare.commands import portable
from mpx.compare.defaults import settings
from mpx.compare.deployed import cpu, read_served
from mpx.compare.json_file import DAMAGED, in_short, read_json
from mpx.compare.looks import Plan
from mpx.compare.metric import judged_by
from mpx.compare.own_loops import doubts
from mpx.compare.predictions import read_predictions
from mpx.compare.predictions_csv import with_predictions
from mpx.compare.results import read_results
from mpx.compare.rules import is_layer, wrong
from mpx.compare.run import CODE_HASHES, RESUMED, SAMPLES, Run, Served
from mpx.compare.served_csv import with_served
from mpx.printing import shown
from mpx.progress import track
from mpx.record.result import CHANGED_AFTER, MEANS_FROM, SCHEMA_VERSION, TRAINED_BEFORE, VALIDATED_AT, one_number
from mpx.runs.folder import CHECKPOINTS, CONFIG, DONE, OWN_LOOP, RESULT, goes_on
from mpx.runs.inputs import CODE
from mpx.settings.fields import NAMED
from mpx.settings.project import is_project

LEFT_OUT = {"failed": "failed", "interrupted": "interrupted; the same command with if_exists=resume continues it"}
ENVIRONMENT = (
    "mpx", "git", "git_dirty", "python", "torch", "cuda", "cudnn", "driver", "os", "cpu", "host", "threads", "command", "started_at",
    RESUMED, TRAINED_BEFORE, VALIDATED_AT, CHANGED_AFTER, MEANS_FROM,
)  # fmt: skip


def collect(study: Path) -> tuple[list[Run], list[tuple[str, str]]]:
    """The newest run of each setting and seed of a study, and (folder, reason) of every other folder; both sorted by folder."""
    runs, left_out = [], []
    folders, closed = _folders(study)
    for folder in track(folders, "reading runs", len(folders)):
        name = folder.relative_to(study).as_posix()
        try:
            run, aside = _run(folder, name)
            runs.append(run)
            left_out += [(name, reason) for reason in aside]
        except LeftOut as reason:
            left_out.append((name, str(reason)))
    runs, older = newest(runs)
    left_out += [(os.path.relpath(error.filename, study), f"cannot be read: {error.strerror}") for error in closed]
    return runs, sorted((shown(name), shown(reason)) for name, reason in (*left_out, *older))


def is_study(folder: Path) -> bool:
    """Whether it holds runs, which may be unfinished, or folders that cannot be read: that of mpx.bench holds none."""
    found, closed = _folders(folder)
    return bool(found or closed)


def read_tables(results: Path) -> tuple[list[Run], list[tuple[str, str]]]:
    """As `collect`, from a results.csv with the served.csv and predictions.csv beside it.

    Raises UserError for a table that mpx did not write.
    """
    runs, older = newest(read_results(results))
    return with_predictions(with_served(runs, results), results), older


class LeftOut(Exception):
    """The folder has no run that counts. The message is the reason."""


def _folders(study: Path) -> tuple[list[Path], list[OSError]]:
    """The folders with a run's record or configuration, and the errors of unreadable folders.

    Folders of sweeps and reports, whose names start with '_', do not count. Links are followed, as in TensorBoard. A folder that several
    links lead to, possibly in a cycle, is visited once, under its own name.
    """
    found, closed, seen = [], [], set()
    for path, inside, files in os.walk(study, onerror=closed.append, followlinks=True):
        if (place := os.path.realpath(path)) in seen:
            inside.clear()
            continue
        seen.add(place)
        inside[:] = [name for name in inside if name[:1] not in "._" and name != CHECKPOINTS]
        inside.sort(key=lambda name: (os.path.islink(os.path.join(path, name)), name))
        if RESULT in files or (CONFIG in files and Path(path) != study):
            found.append(Path(path))
    return sorted(found), closed


def newest(runs: Iterable[Run]) -> tuple[list[Run], list[tuple[str, str]]]:
    """The latest run of each setting and seed, and the others as (folder, reason)."""
    kept: dict[tuple, Run] = {}
    older = []
    for run in sorted(runs, key=_age):
        key = (run.model, run.data, run.setting, run.seed)
        if key in kept:
            older.append((kept[key].folder or "", f"an older run of the same setting and seed; {run.folder} counts"))
        kept[key] = run
    return [kept[key] for key in sorted(kept)], older


def _age(run: Run) -> tuple[str, int, str]:
    """Sort key: the start time, or else the number in a folder name such as `seed0-2`."""
    number = (run.folder or "").rpartition("/")[2].removeprefix(f"seed{run.seed}").removeprefix("-")
    return run.environment.get("started_at") or "", int(number) if number.isdecimal() else 1, run.folder or ""


def _run(folder: Path, name: str) -> tuple[Run, list[str]]:
    """The run, and why rows of its deploy.json are left out. Raises LeftOut."""
    if not (folder / RESULT).is_file():
        raise LeftOut(f"has no {RESULT}: still running, or cut off; the same command with if_exists=resume continues it")
    record = _json(folder / RESULT)
    if not isinstance(record, dict) or not {"schema_version", "status", "setting"} <= record.keys():
        raise LeftOut(f"{RESULT} was not written by mpx")
    if record["schema_version"] != SCHEMA_VERSION:
        raise LeftOut(f"{RESULT} has schema_version {record['schema_version']}, this mpx reads {SCHEMA_VERSION}")
    status = str(record["status"])
    if status not in DONE:
        if goes_on(folder):
            raise LeftOut("still running")
        error = f": {' '.join(str(record['error']).split())}" if status == "failed" and record.get("error") else ""
        raise LeftOut(LEFT_OUT.get(status, f"status {status}") + error)
    try:
        run = _figures(record, name)
        if (found := wrong(run)) is not None:
            raise ValueError(f"{found[0]} is {found[1]!r}")
        served, aside = read_served(folder, run.metrics, judged_by(run.metrics, run.metric, run.metric_goal))
        predictions, no_predictions = read_predictions(folder, record)
        run = replace(run, served=served, serve_samples_per_s=_counting(served, record), predictions=predictions)
        return run, aside + no_predictions
    except DAMAGED as error:
        raise LeftOut(f"{RESULT} was not written by mpx, or is damaged ({in_short(error)})") from error


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise LeftOut(f"{path.name} cannot be read: {' '.join(str(error).split())}") from error


def _figures(record: dict[str, Any], name: str) -> Run:
    setting, speed, memory = record["setting"], record["speed"], record["memory"]
    precision, sparsity = record["precision"], record["sparsity"]
    on_device, declared = memory["peak_allocated_gib"], record.get("metric") or {}
    if bad := next((layer for layer in sparsity["layers"] if not is_layer(layer)), None):
        raise ValueError(f"a layer is {bad!r}")
    return Run(
        **{key: setting[key] for key in NAMED},
        changes={key: _spelled(setting[key]) for key in sorted(setting.keys() - {*NAMED, "seed"})},
        seed=setting["seed"],
        status=record["status"],
        metrics={key: value for key, value in record["metrics"].items() if value is not None},
        batch_size=record["config"]["data"].get("batch_size"),
        device=_device(record),
        **{key: speed[key] for key in ("train_samples_per_s", "step_ms_p50", "model_tflops_per_s", "time_to_train_s", "exclusive")},
        speed_measured=speed.get("measured"),
        compiled=_compiled(speed.get("chosen")),
        label=record.get("label"),
        contents=(record.get("data") or {}).get("contents"),
        metric=declared.get("name"),
        metric_goal=declared.get("goal"),
        own_task=is_project(record["config"]) or record["config"].get("loop") == OWN_LOOP or None,
        looks=Plan(**plan).text if (plan := record["config"].get("until")) else None,
        emulated=precision["emulated"],
        peak_gib=memory["peak_rss_gib"] if on_device is None else on_device,
        loss_scale_final=(precision.get("loss_scale") or {}).get("final"),
        **{key: precision[key] for key in ("optimizer_steps", "skipped_steps")},
        gradient_underflow=precision.get("gradient_underflow_fraction"),
        gradient_underflow_unscaled=precision.get("gradient_underflow_unscaled_fraction"),
        **{key: sparsity[key] for key in ("density", "kept_magnitude")},
        serve_samples_per_s=None,
        folder=name,
        environment=_environment(record["environment"] | ({"host": speed["host"]} if "host" in speed else {}))
        | _code(record)
        | (doubts(record) if record["config"].get("loop") == OWN_LOOP else {})
        | _samples(record.get("data") or {}),
        config=dict(settings(record["config"])),
    )


def _compiled(chosen: Any) -> str | None:
    """chosen: how the run's steps ran, as in its record."""
    mode = chosen.get("compile") if isinstance(chosen, dict) else None
    return mode if isinstance(mode, str) and mode != "off" else None


def _environment(environment: dict[str, Any]) -> dict[str, Any]:
    """The parts of a run's environment that results.csv keeps, without folders of its machine."""
    kept = {key: environment[key] for key in ENVIRONMENT if environment.get(key) not in (None, [])}
    return kept | ({"command": portable(kept["command"])} if "command" in kept else {})


def _code(record: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Hashes of the user's own code, by the key and value that name it."""
    found = {name: digest for name, digest in (record.get("inputs") or {}).items() if name.partition("=")[0] in CODE}
    return {CODE_HASHES: found} if found else {}


def _samples(data: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Checksums of the samples trained on, which older records lack, and tested with."""
    found = {name: str(data[name]) for name in ("train_set", "test_set") if name in data}
    return {SAMPLES: found} if found else {}


def _spelled(value: Any) -> str:
    """The value as typed on the command line, with %20 for a space, since spaces separate the changes."""
    text = value if isinstance(value, str) else json.dumps(one_number(value), separators=(",", ":"))
    return re.sub(r"\s", lambda space: quote(space[0]), text)


def _device(record: dict[str, Any]) -> str | None:
    """`NVIDIA H200`, `2 × NVIDIA H200`, `2 nodes of 4 × NVIDIA H200`, or the CPU with its number of threads: what the speed depends on."""
    environment, trainer = record["environment"], record["config"]["trainer"]
    names, wanted, nodes = environment.get("device"), trainer.get("devices", 1), int(trainer.get("num_nodes", 1))
    if record["memory"]["peak_allocated_gib"] is None:
        return cpu(environment | {"threads": record["speed"].get("threads", environment.get("threads"))})
    if not names:
        return None
    count = len(wanted) if isinstance(wanted, list) else len(names) if wanted == "auto" else int(wanted)
    kinds = Counter(names[:count]) if nodes == 1 else {}  # those of the run come first; a machine may have several kinds
    if len(kinds) > 1:
        return " and ".join(f"{number} × {name}" for name, number in kinds.items())
    device = names[0] if count == 1 else f"{count} × {names[0]}"
    return device if nodes == 1 else f"{nodes} nodes of {device}"


def _counting(served: Iterable[Served], record: dict[str, Any]) -> float | None:
    """The highest samples per second of an accurate way to serve, alone on the training's device; None if there is none."""
    trained_on = record["environment"].get("device")
    device = trained_on[0] if trained_on else None
    return max((one.samples_per_s for one in served if one.exclusive and one.accurate and one.place.device == device), default=None)
