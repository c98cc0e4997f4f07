"""The keys of mpx.compare and the rule for each."""

from collections.abc import Iterable, Mapping
from typing import Any

from mpx.errors import UserError, nearest
from mpx.settings.rules import choice, folder_name, number, text

COMPARE = {
    "study": folder_name("default"),
    "results": text(also=(None,), example="experiments/loss_scaling/results.csv"),
    "control": text(example="fp32-dense"),
    "metric": choice("auto", "test/accuracy", "test/perplexity"),
    "margin": number(0, 1, open_low=True, open_high=True, example=0.01),
    "confidence": number(0.5, 1, open_high=True, example=0.95),
    "output_dir": text(example="outputs"),
}


def check_compare(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> None:
    """Raise UserError for the first setting that is not one of mpx.compare or breaks its rule. overrides: as the user typed them."""
    for key, value in settings.items():
        rule = COMPARE.get(key)
        if rule is None:
            raise UserError(f"{key} is not a setting of mpx.compare.{nearest(key, COMPARE)} See python -m mpx.compare --help.")
        if not rule.fits(value):
            raise UserError(f"{key}={'null' if value is None else value} must be {rule.allowed}. For example {key}={rule.example}.")
    typed = {override.split("=")[0] for override in overrides}
    if settings["results"] is not None and (other := typed & {"study", "output_dir"}):
        raise UserError(f"results and {max(other)} both say which runs to compare. Leave one of them out.")
