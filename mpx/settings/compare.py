"""The keys of mpx.compare, each with its rule."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mpx.errors import UserError
from mpx.settings.rules import Rule, choice, folder_name, number, text
from mpx.settings.values import check_value, key_of

MAX_NOTE = 20_000  # characters
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
    "note": Rule(
        f"a text of at most {MAX_NOTE:,} characters, or null",
        lambda v: v is None or (isinstance(v, str) and len(v) <= MAX_NOTE),
        '"what this study is about"',
    ),
    "output_dir": text(example="outputs"),
}

IN_ITS_UNIT = {"margin": number(0, open_low=True, example=0.01)}  # with margin_is=absolute, of a metric of any scale


def check_compare(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> None:
    """Raise UserError for the first setting that mpx.compare does not have or that breaks its rule. overrides: as the user typed them."""
    rules = COMPARE | (IN_ITS_UNIT if settings["margin_is"] == "absolute" else {})
    for key, value in settings.items():
        check_value(key, value, rules, "mpx.compare")
    if settings["results"] is not None and (other := {"study", "output_dir"}.intersection(map(key_of, overrides))):
        raise UserError(f"results and {max(other)} both say which runs to compare. Leave one of them out.")
