"""What mpx.Recorder takes, each with its rule."""

import math
import re
from collections.abc import Mapping
from typing import Any

from mpx.errors import UserError
from mpx.settings.fields import LABEL
from mpx.settings.rules import Rule, choice, flag, folder_name, text, whole
from mpx.settings.values import check_value

PROGRAM = "mpx.Recorder"
NAMES = ("model", "data", "precision", "sparsity")  # what every setting says
KEY = re.compile(r"[A-Za-z_][\w.]*")
METRIC = re.compile(r"[A-Za-z_]\w*/[\w.]+")
RECORDER = {
    "study": folder_name("default"),
    "output_dir": text(example="outputs"),
    "if_exists": choice("new", "overwrite", "error"),
    "warmup_steps": whole(0, example=10),
    "observe": flag(),
    "metric": Rule(
        "a name such as val/dice, with the split first, or null", lambda v: v is None or METRIC.fullmatch(str(v)) is not None, "val/dice"
    ),
    "metric_goal": choice("max", "min"),
    "label": LABEL,
    "setting.seed": whole(0, 2**32 - 1, example=0),
} | {f"setting.{name}": folder_name(example) for name, example in zip(NAMES, ("my_net", "my_data", "amp", "2of4"), strict=True)}
SHARES = ("test/accuracy", "val/accuracy")
A_VALUE = Rule("a number, true, false, null or one line of text without control characters", lambda v: _is_value(v), "0.1")


def check_recorder(given: Mapping[str, Any], setting: Mapping[str, Any]) -> None:
    """Raise UserError for the first value that a record could not hold. given: the arguments but `setting`."""
    for key, value in given.items():
        check_value(key, value, RECORDER, PROGRAM)
    if not isinstance(setting, Mapping):
        raise UserError(f'setting={setting!r} must be a mapping. For example setting={{"model": "my_net", …, "seed": 0}}.')
    for name in (*NAMES, "seed"):
        if name not in setting:
            example = RECORDER[f"setting.{name}"].example
            raise UserError(f"setting has no {name!r}, by which runs are compared. Add it, for example {name}={example}.")
    for key, value in setting.items():
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise UserError(f"setting has the key {key!r}. Use letters, digits, '_' and '.', as in optimizer.lr.")
        known = f"setting.{key}" if f"setting.{key}" in RECORDER else None
        check_value(known or f"setting.{key}", value, RECORDER if known else {f"setting.{key}": A_VALUE}, PROGRAM)


def check_samples(samples: Any) -> None:
    """Raise UserError for a number of samples that no step has."""
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise UserError(f"step({samples!r}): samples must be a whole number of at least 1. For example step(len(x)).")


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Raise UserError for a name that result.json does not have, or an accuracy in percent. Infinite and NaN values pass."""
    for name, value in metrics.items():
        if not isinstance(name, str) or not METRIC.fullmatch(name):
            raise UserError(f"{name!r} is no name of a metric. Write the split first, as in test/accuracy, val/loss or train/loss.")
        if name in SHARES and math.isfinite(value) and not 0 <= value <= 1:
            raise UserError(f"{name}={value:g} must be a share from 0 to 1. For example {name}={value / 100:g}, if it is in percent.")


def _is_value(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int) or (isinstance(value, str) and value.isprintable() and bool(value.strip()))
