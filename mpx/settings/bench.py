"""The keys of mpx.bench and the rule for each."""

from collections.abc import Iterable, Mapping
from typing import Any

from mpx.errors import UserError, nearest
from mpx.settings.rules import Rule, choice, text

SMALLEST, LARGEST, STEP = 32, 32768, 16  # FP8 and int8 products on CUDA need multiples of 16

BENCH = {
    "what": text(example="formats"),
    "accelerator": choice("auto", "cpu", "gpu"),
    "size": Rule(
        f"a multiple of {STEP} from {SMALLEST} to {LARGEST}, or auto",
        lambda v: v == "auto" or (type(v) is int and SMALLEST <= v <= LARGEST and v % STEP == 0),
        "1024",
    ),
    "output_dir": text(example="outputs"),
}


def check_bench(settings: Mapping[str, Any], benchmarks: Iterable[str]) -> None:
    """Raise UserError for the first setting that is not one of mpx.bench or breaks its rule. benchmarks: what `what` may be."""
    for key, value in settings.items():
        rule = BENCH.get(key)
        if rule is None:
            raise UserError(f"{key} is not a setting of mpx.bench.{nearest(key, BENCH)} See python -m mpx.bench --help.")
        if not rule.fits(value):
            raise UserError(f"{key}={'null' if value is None else value} must be {rule.allowed}. For example {key}={rule.example}.")
    what = settings["what"]
    if what not in (allowed := list(benchmarks)):
        raise UserError(f"what={what}: no such benchmark.{nearest(what, allowed)} Allowed: {', '.join(allowed)}.")
