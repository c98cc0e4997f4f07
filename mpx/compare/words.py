"""The wording of decisions and estimates, shared by the terminal, HTML, Markdown, TensorBoard and the
verdicts. And the commands that repeat a study.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable

from mpx.compare.comparison import (
    POPULATION,
    Comparison,
    Decision,
    Estimate,
    Group,
    Method,
    Row,
    Speedup,
    Verdict,
)
from mpx.compare.looks import Look
from mpx.compare.run import RESUMED, Run, text_of
from mpx.system.printing import UNKNOWN, how_many, number, rate_spec, signed

SHARED = "shared"
TOO_FEW = {
    Method.NONE: "it takes at least 2 seeds of each",
    Method.TIED: "all seeds of a setting agree, so how they scatter is unknown",
    Method.CROSSED: "it takes more seeds or more test samples",
}
# precision -> its name in a sentence
FORMATS = {
    "fp32": "FP32", "tf32": "TF32", "amp": "FP16", "amp_bf16": "BF16", "fp8": "FP8",
    "fp16_true": "pure FP16", "bf16_true": "pure BF16",
}  # fmt: skip
PROGRAM = ["python", "-m", "mpx.train"]
# words that a repeated setting does not need: about resuming, output folders, printing, looks and seeds
OMITTED = (
    "if_exists=", "ckpt_path=", "output_dir=", "retry_failed=", "fail_fast=", "trainer.progress=", "until=",
    "until.", "seed=",
)  # fmt: skip
CONFIG_DIR = "--config-dir"  # Hydra's option for a folder of the user's own YAML files
PLACES = (CONFIG_DIR, "data.root", "data.cache", "output_dir", "ckpt_path")  # folders of one machine
PER_RUN = ("command", "started_at", RESUMED)  # parts of the environment that differ for every run


def title(group: Group) -> str:
    return ", ".join(filter(None, (f"{group.model} on {group.data}", text_of(group.changes))))


def spread(estimate: Estimate | None, spec: str | None = None, unit: str = "") -> str:
    """`0.9917 ± 0.0012`, without the spread if there is none or if it rounds to zero."""
    if estimate is None:
        return UNKNOWN
    spec = spec or rate_spec(estimate.mean)
    std = number(estimate.std, spec) if estimate.std else "0"
    return number(estimate.mean, spec) + (f" ± {std}" if std.strip("0.,%") else "") + unit


def question(comparison: Comparison) -> str:
    """The title of a report."""
    metrics = {group.metric.words for group in comparison.groups}
    what = title(comparison.groups[0]) if len(comparison.groups) == 1 else "each model"
    how = f"with no worse {metrics.pop()}" if len(metrics) == 1 else "at no loss"
    return f"Which setting trains {what} fastest {how}?"


def difference(decision: Decision, spec: str) -> str:
    """`+0.0012 (−0.0003 to +0.0027)`."""
    bounds = (
        "" if decision.low is None else (f" ({signed(decision.low, spec)} to {signed(decision.high, spec)})")
    )
    return signed(decision.difference, spec) + bounds


def population(decision: Decision | None, spec: str) -> str:
    """`−0.0103 to +0.0127`, the interval for the population."""
    interval = decision.population if decision else None
    return (
        UNKNOWN
        if interval is None or interval.low is None
        else (f"{signed(interval.low, spec)} to {signed(interval.high, spec)}")
    )


def shared(cpu_used_by_others: float | None) -> str:
    """`shared`, or `shared, 12%` of the CPU."""
    return SHARED if cpu_used_by_others is None else f"{SHARED}, {cpu_used_by_others:.0%}"


def speedup(gain: Speedup) -> str:
    """`1.53× (1.49 to 1.57)`."""
    return f"{gain.ratio:.2f}×" + ("" if gain.low is None else f" ({gain.low:.2f} to {gain.high:.2f})")


def spoken(row: Row) -> str:
    """The setting as a sentence names it: `BF16 with 2:4 optimizer.lr=0.05` for `amp_bf16-2of4
    optimizer.lr=0.05`; a label as it is.
    """
    run = row.runs[0]
    if run.label == row.setting:
        return row.setting
    pruned = "" if run.sparsity == "dense" else f" with {run.sparsity.replace('2of4', '2:4')}"
    return FORMATS.get(run.precision, run.precision) + pruned + row.setting.removeprefix(run.plain)


def decided(decision: Decision | None) -> str:
    """The verdict and what it rests on: `undecided, about 3 more seeds would decide`; `no loss, look 2 of 5,
    at 8 seeds`.
    """
    if decision is None:
        return UNKNOWN
    look = decision.look
    basis = [needed(decision)] if look is None else [decision.reason, _look(look, decision.verdict)]
    return ", ".join(filter(None, (decision.verdict, *basis)))


def needed(decision: Decision) -> str | None:
    """The reason of a decision that the test did not make, or what a decision still needs."""
    if decision.verdict != Verdict.UNDECIDED:
        return decision.reason
    if decision.method == Method.UNSAMPLED and decision.population:
        return decision.population.reason
    if decision.method in TOO_FEW:
        return TOO_FEW[decision.method]
    if decision.look is not None:
        further = decision.look.further
        return f"the plan goes on to {further} seeds" if further else "further looks would hardly decide"
    if decision.more_seeds is None:
        return "more seeds will not help: the scatter is too large"
    return f"about {how_many(decision.more_seeds, 'more seed')} would decide"


def _look(look: Look, verdict: Verdict) -> str:
    if verdict != Verdict.UNDECIDED:
        return look.words
    if look.further is not None:
        return f"{look.words}, the next at {look.further}"
    last = "the last" if look.number == look.of else "and further ones would hardly decide"
    return f"{look.words}, {last}"


def margin(group: Group, comparison: Comparison) -> str:
    given = comparison.question.margin
    whose = " for the population" if comparison.question.margin_for == POPULATION else ""
    return (f"{100 * given:g} % of the control's" if group.metric.relative else f"{given:g}") + whose


def confidence(comparison: Comparison) -> str:
    return f"{comparison.question.confidence * 100:g} % confidence"


def places(group: Group) -> str:
    """`Batch size 128; NVIDIA H200.` for all runs of the group; empty if both are unknown."""
    sizes = ", ".join(
        f"{size:,}" for size in sorted({run.batch_size for run in group.runs if run.batch_size is not None})
    )
    devices = ", ".join(sorted({run.device for run in group.runs if run.device}))
    parts = "; ".join(filter(None, (f"Batch size {sizes}" if sizes else "", devices)))
    return f"{parts}." if parts else ""


def environment_rows(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """(name, value) of the runs' environment; all values if they differ."""
    values_of: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.environment.items():
            if key not in PER_RUN and value not in (None, [], {}):
                values_of.setdefault(key, {})[_text(value)] = None
    return [(key, "; ".join(values)) for key, values in sorted(values_of.items())]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def portable(command: str) -> str:
    """The command with DIR in place of the machine's folders: data.root=DIR."""
    words = (word.split("=", 1) for word in _words(command))
    return shlex.join(
        f"{word[0]}=DIR" if len(word) > 1 and word[0] in PLACES else "=".join(word) for word in words
    )


def _words(command: str) -> list[str]:
    """The words of a command line, an option and its value as one: --config-dir=DIR. Raises ValueError for an
    unclosed quotation.
    """
    words: list[str] = []
    for word in shlex.split(command):
        if words and words[-1] == CONFIG_DIR:
            words[-1] += f"={word}"
        else:
            words.append(re.sub("^-cd(?==|$)", CONFIG_DIR, word))  # Hydra's short name of it
    return words


def commands(runs: Iterable[Run]) -> tuple[str, ...]:
    """One command for each setting, a sweep over its seeds."""
    seeds: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for run in runs:
        if (words := _overrides(run)) is not None:
            seeds[words].add(run.seed)
    return tuple(sorted(_line(words, sorted(of_setting)) for words, of_setting in seeds.items()))


def _overrides(run: Run) -> tuple[str, ...] | None:
    """The settings of its command, without the seed; None if the command is unknown."""
    try:
        words = _words(run.environment.get("command") or "")
    except ValueError:  # an unclosed quotation
        return None
    if words[:3] != PROGRAM or not all("=" in word for word in words[3:]):
        return None
    kept = (word for word in words[3:] if not word.startswith(OMITTED))
    return tuple(sorted(kept, key=lambda word: (not word.startswith(CONFIG_DIR), word)))


def _line(words: tuple[str, ...], seeds: list[int]) -> str:
    sweep = ["-m"] if len(seeds) > 1 else []
    return shlex.join([*PROGRAM, *sweep, *words, f"seed={','.join(map(str, seeds))}"])
