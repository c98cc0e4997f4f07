"""Read every result.json below a folder, and say why some runs are left out."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mpx.compare.looks import Plan
from mpx.compare.run import CODE_HASHES, RESUMED, Run
from mpx.compare.served import UNREADABLE, cpu, read_served
from mpx.compare.words import portable
from mpx.runs.folder import CHECKPOINTS, CONFIG, DONE, RESULT, goes_on
from mpx.runs.result import (
    LAYOUT,
    PREDICTIONS,
    SCHEMA_VERSION,
    Predictions,
    judged_by,
    one_number,
    predictions_from,
)
from mpx.settings.fields import NAMED
from mpx.system.printing import shown, track

LEFT_OUT = {
    "failed": "failed",
    "interrupted": "interrupted; the same command with if_exists=resume continues it",
}
ENVIRONMENT = (
    "mpx", "git", "git_dirty", "python", "torch", "cuda", "cudnn", "driver", "os", "cpu", "host", "threads",
    "command",
    "started_at", RESUMED,
)  # fmt: skip
ROUNDING = 1e-9  # of an accuracy
MOSTLY = 0.5  # share of its FLOPs in the formats of its mode with which a run counts as one of the mode


class LeftOut(Exception):
    """The folder has no run that counts. The message is the reason."""


def collect(study: Path) -> tuple[list[Run], list[tuple[str, str]]]:
    """The newest run of each setting and seed of a study, and (folder, reason) of every other folder; both
    sorted by folder.
    """
    runs, left_out = [], []
    folders = run_folders(study)
    for folder in track(folders, "reading runs", len(folders)):
        name = folder.relative_to(study).as_posix()
        try:
            run, reasons = _run(folder, name)
            runs.append(run)
            left_out += [(name, reason) for reason in reasons]
        except LeftOut as reason:
            left_out.append((name, str(reason)))
    runs, older = newest(runs)
    return runs, sorted((shown(name), shown(reason)) for name, reason in (*left_out, *older))


def run_folders(study: Path) -> list[Path]:
    """The folders with a run's record or configuration. Folders of sweeps and reports, whose names start with
    '_', do not count.
    """
    folders = []
    for path, inside, files in os.walk(study):
        inside[:] = [name for name in inside if name[:1] not in "._" and name != CHECKPOINTS]
        if RESULT in files or (CONFIG in files and Path(path) != study):
            folders.append(Path(path))
    return sorted(folders)


def newest(runs: Iterable[Run]) -> tuple[list[Run], list[tuple[str, str]]]:
    """The latest run of each setting and seed, and the others as (folder, reason)."""
    kept: dict[tuple, Run] = {}
    older = []
    for run in sorted(runs, key=_age):
        key = (run.model, run.data, run.setting, run.seed)
        if key in kept:
            older.append(
                (kept[key].folder or "", f"an older run of the same setting and seed; {run.folder} counts")
            )
        kept[key] = run
    return [kept[key] for key in sorted(kept)], older


def _age(run: Run) -> tuple[str, int, str]:
    """Sort key: the start time, then the number in a folder name such as `seed0-2`, which has more digits
    from the tenth run on.
    """
    folder = run.folder or ""
    return str(run.environment.get("started_at") or ""), len(folder), folder


def _run(folder: Path, name: str) -> tuple[Run, list[str]]:
    """The run, and why parts of it are left out. Raises LeftOut."""
    if not (folder / RESULT).is_file():
        raise LeftOut(
            f"has no {RESULT}: still running, or cut off; the same command with if_exists=resume continues it"
        )
    try:
        record = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        if record["schema_version"] != SCHEMA_VERSION:
            raise LeftOut(
                f"{RESULT} has schema_version {record['schema_version']}, this mpx reads {SCHEMA_VERSION}"
            )
        if record["status"] not in DONE:
            raise LeftOut("still running" if goes_on(folder) else _ended(record))
        run = run_of(record, name)
        if (broken := _broken_promise(record)) is not None:
            raise LeftOut(broken)
        served, rows_left_out = read_served(
            folder, run.metrics, judged_by(run.metrics, run.metric, run.metric_goal)
        )
        predictions, reasons = read_predictions(folder, record)
        return replace(run, served=served, predictions=predictions), rows_left_out + reasons
    except UNREADABLE as error:
        raise LeftOut(f"{RESULT} cannot be read, or was not written by mpx ({_in_short(error)})") from error


def _ended(record: dict[str, Any]) -> str:
    status = str(record["status"])
    error = (
        f": {' '.join(str(record['error']).split())}" if status == "failed" and record.get("error") else ""
    )
    return LEFT_OUT.get(status, f"status {status}") + error


def _broken_promise(record: dict[str, Any]) -> str | None:
    """Why the run is not one of its precision mode, such as a loop that never enters autocast; None if it
    is.
    """
    shares = (record["precision"].get("audit") or {}).get("as_promised") or {}
    kept = ", ".join(f"{share:.0%} of the {kind} FLOPs" for kind, share in shares.items() if share < MOSTLY)
    mode = record["setting"]["precision"]
    return f"did not compute in the formats of precision={mode}: {kept} are as promised" if kept else None


def _in_short(error: Exception) -> str:
    """`KeyError: 'speed'`."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]


def run_of(record: dict[str, Any], name: str) -> Run:
    """The run in the folder `name`, from its record alone. Raises one of UNREADABLE for a record of another
    structure.
    """
    setting, speed, memory, config = record["setting"], record["speed"], record["memory"], record["config"]
    precision, sparsity, declared = record["precision"], record["sparsity"], record.get("metric") or {}
    on_device = memory["peak_allocated_gib"]
    return Run(
        **{key: setting[key] for key in NAMED},
        changes={key: _spelled(setting[key]) for key in sorted(setting.keys() - {*NAMED, "seed"})},
        seed=setting["seed"],
        status=record["status"],
        metrics={key: value for key, value in record["metrics"].items() if value is not None},
        batch_size=config["data"].get("batch_size"),
        device=_device(record),
        train_samples_per_s=speed["train_samples_per_s"],
        step_ms_p50=speed["step_ms_p50"],
        model_tflops_per_s=speed["model_tflops_per_s"],
        time_to_train_s=speed["time_to_train_s"],
        exclusive=speed["exclusive"],
        cpu_used_by_others=speed.get("cpu_used_by_others") if on_device is None else None,
        compiled=_compiled(speed.get("chosen")),
        label=record.get("label"),
        contents=(record.get("data") or {}).get("contents"),
        metric=declared.get("name"),
        metric_goal=declared.get("goal"),
        looks=Plan(**plan).text if (plan := config.get("until")) else None,
        emulated=precision["emulated"],
        peak_gib=memory["peak_rss_gib"] if on_device is None else on_device,
        loss_scale_final=(precision.get("loss_scale") or {}).get("final"),
        optimizer_steps=precision["optimizer_steps"],
        skipped_steps=precision["skipped_steps"],
        gradient_underflow=precision.get("gradient_underflow_fraction"),
        gradient_underflow_unscaled=precision.get("gradient_underflow_unscaled_fraction"),
        density=sparsity["density"],
        kept_magnitude=sparsity["kept_magnitude"],
        folder=name,
        environment=_environment(record),
    )


def _compiled(chosen: Any) -> str | None:
    """chosen: how the run's steps ran, as in its record."""
    mode = (chosen or {}).get("compile")
    return None if mode == "off" else mode


def _environment(record: dict[str, Any]) -> dict[str, Any]:
    """The parts of a run's environment that results.csv keeps, without folders of its machine; and hashes of
    the user's own code, by the key and value that name it.
    """
    environment, inputs = record["environment"], record.get("inputs") or {}
    kept = {key: environment[key] for key in ENVIRONMENT if environment.get(key) not in (None, [])}
    kept |= {"host": record["speed"]["host"]} if "host" in record["speed"] else {}
    kept |= {"command": portable(kept["command"])} if "command" in kept else {}
    code = {name: digest for name, digest in inputs.items() if name.partition("=")[0].endswith("._target_")}
    return kept | ({CODE_HASHES: code} if code else {})


def _spelled(value: Any) -> str:
    """The value as typed on the command line, with %20 for a space, since spaces separate the changes."""
    text = value if isinstance(value, str) else json.dumps(one_number(value), separators=(",", ":"))
    return re.sub(r"\s", lambda space: quote(space[0]), text)


def _device(record: dict[str, Any]) -> str | None:
    """`NVIDIA H200`, `2 × NVIDIA H200`, `2 nodes of 4 × NVIDIA H200`, or the CPU with its threads: what the
    speed depends on.
    """
    environment, trainer = record["environment"], record["config"]["trainer"]
    names, wanted = environment.get("device"), trainer.get("devices", 1)
    if record["memory"]["peak_allocated_gib"] is None:
        return cpu(environment | {"threads": record["speed"].get("threads", environment.get("threads"))})
    if not names:
        return None
    count = len(wanted) if isinstance(wanted, list) else len(names) if wanted == "auto" else int(wanted)
    kinds, nodes = " and ".join(dict.fromkeys(names[:count])), int(trainer.get("num_nodes", 1))
    device = kinds if count == 1 else f"{count} × {kinds}"
    return device if nodes == 1 else f"{nodes} nodes of {device}"


def read_predictions(folder: Path, record: dict[str, Any]) -> tuple[Predictions | None, list[str]]:
    """(the folder's predictions, why they are left out). record: of the same folder, whose accuracy they must
    have.
    """
    if not (folder / PREDICTIONS).is_file():
        return None, []
    try:
        content = json.loads((folder / PREDICTIONS).read_text(encoding="utf-8"))
        if content["layout"] != LAYOUT:
            raise ValueError(f"its layout is {content['layout']!r}, this mpx reads {LAYOUT}")
        predictions = predictions_from(content["test_set"], content["samples"], content["right"])
        accuracy = record["metrics"].get("test/accuracy")
        if accuracy is None or abs(predictions.accuracy - accuracy) > ROUNDING:
            raise ValueError(f"it has {predictions.accuracy:.6f} of the samples right, the run {accuracy}")
    except UNREADABLE as error:
        return None, [f"{PREDICTIONS} does not count: {_in_short(error)}"]
    return predictions, []
