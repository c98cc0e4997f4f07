"""The keys of mpx.compare, each with its rule, and the command line that gives them."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf

from mpx.errors import UserError
from mpx.settings.choices import CONF
from mpx.settings.rules import choice, flag, folder_name, number, text
from mpx.settings.values import check_value, key_of

COMPARE = {
    "study": folder_name("default"),
    "results": text(also=(None,), example="experiments/loss_scaling/results.csv"),
    "control": text(example="fp32-dense"),
    "metric": text(example="test/accuracy"),
    "metric_goal": choice("auto", "max", "min"),
    "margin": replace(
        number(0, 1, open_low=True, open_high=True, example=0.01),
        allowed="a number above 0 and below 1, or any above 0 with margin_is=absolute",
    ),
    "margin_is": choice("auto", "absolute", "relative"),
    "margin_for": choice("test_set", "population"),
    "confidence": number(0.5, 1, open_high=True, example=0.95),
    "output_dir": text(example="outputs"),
    "list": flag(),
    "status": choice(None, "completed", "diverged", "failed", "interrupted", "running", "cut_off"),
    "setting": text(also=(None,), example="amp-2of4"),
    "remove": choice(None, "failed"),
}
LISTING = ("list", "remove", "status", "setting")  # keys of the list of runs
# with margin_is=absolute, of a metric of any scale
IN_ITS_UNIT = {"margin": number(0, open_low=True, example=0.01)}
# on which a verdict depends
DECIDE = ("control", "metric", "metric_goal", "margin", "margin_is", "margin_for", "confidence")
USUAL: dict[str, Any] = {
    str(key): value for key, value in OmegaConf.load(CONF / "compare.yaml").items() if key in COMPARE
}
DEFAULTS = {key: USUAL[key] for key in DECIDE}
# Text that Hydra accepts without quotes.
BARE = re.compile(r"(?!(null|true|false|nan|inf)$)([A-Za-z/]|\.\.?/)[\w./-]*", re.ASCII | re.IGNORECASE)


def check_compare(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> None:
    """Raise UserError for the first setting that mpx.compare does not have or that breaks its rule.
    overrides: as typed.
    """
    rules = COMPARE | (IN_ITS_UNIT if settings["margin_is"] == "absolute" else {})
    for key, value in settings.items():
        check_value(key, value, rules, "mpx.compare")
    if settings["results"] is not None and (
        other := {"study", "output_dir"}.intersection(map(key_of, overrides))
    ):
        raise UserError(f"results and {max(other)} both say which runs to compare. Leave one of them out.")
    if not settings.get("list") and settings.get("remove") is None:
        for key in ("status", "setting"):
            if settings.get(key) is not None:
                raise UserError(f"{key}={settings[key]} chooses among runs that are listed. Add list=true.")


def compare_command(study: str, **how: str | float) -> str:
    """The command that repeats the comparison, with the keys that differ from their defaults. how: of the
    keys DECIDE.
    """
    changed = {key: value for key, value in how.items() if DEFAULTS[key] != value}
    words = (
        typed_text(key, value) if isinstance(value, str) else f"{key}={value}"
        for key, value in changed.items()
    )
    return " ".join(["python -m mpx.compare", typed_text("study", study), *words])


def typed_text(key: str, value: str) -> str:
    """The setting quoted for the shell and for Hydra: study=default, 'output_dir="my runs"'."""
    if BARE.fullmatch(value):
        return f"{key}={value}"
    # Hydra unescapes a backslash only before a quote
    escaped = re.sub(r'(\\*)("|\Z)', lambda end: 2 * end[1] + end[2].replace('"', '\\"'), value)
    return shlex.quote(f'{key}="{escaped}"')
