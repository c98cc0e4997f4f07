"""The keys of mpx.bench, each with its rule."""

from collections.abc import Iterable, Mapping
from typing import Any

from mpx.errors import UserError, nearest
from mpx.settings.rules import Rule, choice, text
from mpx.settings.values import check_value

# of a matrix's side; FP8 and int8 products on CUDA need multiples of 16
MIN_SIZE, MAX_SIZE, SIZE_STEP = 32, 32768, 16

BENCH = {
    "what": text(example="formats"),
    "accelerator": choice("auto", "cpu", "gpu"),
    "size": Rule(
        f"a multiple of {SIZE_STEP} from {MIN_SIZE} to {MAX_SIZE}, or auto",
        lambda v: v == "auto" or (type(v) is int and MIN_SIZE <= v <= MAX_SIZE and v % SIZE_STEP == 0),
        "1024",
    ),
    "output_dir": text(example="outputs"),
}


def check_bench(settings: Mapping[str, Any], benchmarks: Iterable[str]) -> None:
    """Raise UserError for the first setting that mpx.bench does not have or that breaks its rule. benchmarks:
    the values of `what`.
    """
    for key, value in settings.items():
        check_value(key, value, BENCH, "mpx.bench")
    what = settings["what"]
    if what not in (allowed := list(benchmarks)):
        raise UserError(
            f"what={what}: no such benchmark.{nearest(what, allowed)} Allowed: {', '.join(allowed)}."
        )
