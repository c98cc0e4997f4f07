"""The arguments of the public parts, each with its rule: those of mpx.Precision and mpx.Sparsity are the
command's keys.
"""

import math
import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from omegaconf import OmegaConf

from mpx.errors import UserError, nearest
from mpx.settings.check import check_goal
from mpx.settings.choices import CONF
from mpx.settings.fields import FIELDS, LABEL, NAMED
from mpx.settings.rules import Rule, choice, flag, folder_name, text, whole
from mpx.settings.values import as_dict, check_value

PROGRAM = "mpx.Recorder"
KEY = re.compile(r"[A-Za-z_][\w.]*")
METRIC = re.compile(r"[A-Za-z_]\w*/[\w.]+")
RECORDER = {
    "study": folder_name("default"),
    "output_dir": text(example="outputs"),
    "if_exists": choice("new", "overwrite", "error"),
    "warmup_steps": whole(0, example=10),
    "observe": flag(),
    "metric": Rule(
        "a name such as val/dice, with the split first, or null",
        lambda v: v is None or METRIC.fullmatch(str(v)) is not None,
        "val/dice",
    ),
    "metric_goal": choice("max", "min"),
    "label": LABEL,
    "setting.seed": whole(0, 2**32 - 1, example=0),
} | {
    f"setting.{name}": folder_name(example)
    for name, example in zip(NAMED, ("my_net", "my_data", "amp", "2of4"), strict=True)
}
SHARES = ("test/accuracy", "val/accuracy")
LOGGED = Rule(
    "a name that the module logs, such as val/dice, or null",
    lambda v: v is None or (isinstance(v, str) and v.strip() != ""),
    "val/dice",
)
KNOWN_FROM = {  # keys that mpx.Record knows without `changes` -> where from
    "model": "mpx.Record(model=…)", "data": "mpx.Record(data=…)", "seed": "mpx.Record(seed=…)",
    "precision": "the Trainer's precision",
    "sparsity": "mpx.Sparsity",
}  # fmt: skip
A_VALUE = Rule(
    "a number, true, false, null or one line of text without control characters",
    lambda v: _is_value(v),
    "0.1",
)


def defaults(group: str, choice: str) -> dict[str, Any]:
    """The content of conf/<group>/<choice>.yaml, which has the reasons."""
    return as_dict(OmegaConf.load(CONF / group / f"{choice}.yaml"))


def checked(group: str, given: Mapping[str, Any], allowed: Mapping[str, Any], part: str) -> dict[str, Any]:
    """`allowed` (names and defaults) with the values `given`. group: of the keys in mpx.settings.fields, such
    as `sparsity`.

    Raises UserError for an argument that `part` does not take, or a value that breaks the key's rule.
    """
    for name, value in given.items():
        if name not in allowed:
            raise UserError(
                f"{part}: no argument {name}.{nearest(name, allowed)} It takes {', '.join(allowed)}."
            )
        rule = FIELDS[f"{group}.{name}"]
        if not rule.fits(value):
            raise UserError(
                f"{part}({name}={value!r}) must be {rule.allowed}. For example {name}={rule.example}."
            )
    return dict(allowed) | {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }


def check_recorder(given: Mapping[str, Any], setting: Mapping[str, Any]) -> None:
    """Raise UserError for the first value that a record could not hold. given: the arguments but
    `setting`.
    """
    for key, value in given.items():
        check_value(key, value, RECORDER, PROGRAM)
    check_goal(given["metric"], given["metric_goal"])
    if not isinstance(setting, Mapping):
        raise UserError(
            f'setting={setting!r} must be a mapping. For example setting={{"model": "my_net", …, "seed": 0}}.'
        )
    for name in (*NAMED, "seed"):
        if name not in setting:
            example = RECORDER[f"setting.{name}"].example
            raise UserError(
                f"setting has no {name!r}, by which runs are compared. Add it, for example {name}={example}."
            )
    _check_each("setting", setting, PROGRAM)


def check_record(
    given: Mapping[str, Any], names: Mapping[str, Any], changes: Mapping[str, Any] | None
) -> None:
    """Raise UserError for the first argument of mpx.Record that a record could not hold. names: model, data
    and seed; None: not given.
    """
    program = "mpx.Record"
    for key, value in given.items():
        check_value(key, value, RECORDER | {"metric": LOGGED}, program)
    check_goal(given["metric"], given["metric_goal"])
    for name in [name for name, value in names.items() if value is not None]:
        check_value(name, names[name], {name: RECORDER[f"setting.{name}"]}, program)
    if not isinstance(changes, Mapping | None):
        raise UserError(f'changes={changes!r} must be a mapping. For example changes={{"lr": 0.1}}.')
    for key in changes or {}:
        if key in KNOWN_FROM:
            raise UserError(
                f"changes has the key {key!r}, which is known from {KNOWN_FROM[key]}. Leave it out."
            )
    _check_each("changes", changes or {}, program)


def _check_each(argument: str, values: Mapping[str, Any], program: str) -> None:
    for key, value in values.items():
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise UserError(
                f"{argument} has the key {key!r}. Use letters, digits, '_' and '.', as in optimizer.lr."
            )
        check_value(name := f"{argument}.{key}", value, {name: RECORDER.get(name, A_VALUE)}, program)


def plain(values: Any) -> Any:
    """A mapping as a dict, whose NumPy numbers become Python's, since only these can be written. Other values
    are returned unchanged.
    """
    if not isinstance(values, Mapping):
        return values
    return {
        key: value.item() if type(value).__module__ == "numpy" and value.ndim == 0 else value
        for key, value in values.items()
    }


def check_samples(samples: Any) -> int:
    """The number of samples as an int of Python. Raises UserError for a number that no step can have."""
    if not isinstance(samples, Integral) or isinstance(samples, bool) or samples < 1:
        raise UserError(
            f"step({samples!r}): samples must be a whole number of at least 1. For example step(len(x))."
        )
    return int(samples)


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Raise UserError for a name that result.json does not have, or an accuracy in percent. Infinite and NaN
    values pass.
    """
    for name, value in metrics.items():
        if not isinstance(name, str) or not METRIC.fullmatch(name):
            raise UserError(
                f"{name!r} is not the name of a metric. Write the split first, as in test/accuracy, "
                "val/loss or train/loss."
            )
        if name in SHARES and math.isfinite(value) and not 0 <= value <= 1:
            raise UserError(
                f"{name}={value:g} must be a share from 0 to 1. For example {name}={value / 100:g}, if it "
                "is in percent."
            )


def _is_value(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return (
        value is None
        or isinstance(value, bool | int)
        or (isinstance(value, str) and value.isprintable() and bool(value.strip()))
    )
