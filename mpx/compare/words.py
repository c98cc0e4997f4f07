"""How figures, decisions and names read for people: the same on the terminal, in the page, in Markdown and in TensorBoard."""

import math
from collections.abc import Iterable

from mpx.compare.comparison import METRICS, Comparison, Decision, Estimate, Group, Row, Run, Speedup

UNKNOWN = "–"
SHARED = "shared"
TOO_FEW = {"none": "it takes at least 2 of each", "equal seeds": "all agree so far, so how they scatter is unknown"}
OF_ONE_RUN = ("command", "started_at", "resumed_from_steps")  # parts of the environment that differ in each run by their nature


def title(group: Group) -> str:
    return f"{group.model} on {group.data}" + (f", {group.changes}" if group.changes else "")


def plain(value: float | None, spec: str) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:{spec}}"


def metric_spec(metric: str) -> str:
    return ".2f" if METRICS[metric].relative else ".4f"


def rate_spec(value: float) -> str:
    """About three digits, or all before the point: 0.482, 31.5, 1,234."""
    return ",.0f" if abs(value) >= 100 else "#.3g"


def signed(value: float | None, spec: str) -> str:
    return plain(value, f"+z{spec}").replace("-", "−")  # z: no −0.0000


def spread(estimate: Estimate | None, spec: str | None = None, unit: str = "") -> str:
    """`0.9917 ± 0.0012`; without the spread where there is none, or where it would read as zero."""
    if estimate is None:
        return UNKNOWN
    spec = spec or rate_spec(estimate.mean)
    std = plain(estimate.std, spec) if estimate.std else "0"
    return plain(estimate.mean, spec) + (f" ± {std}" if std.strip("0.,%") else "") + unit


def rate(row: Row) -> str:
    """Samples per second, marked where they were measured on a device that others may have used."""
    if row.throughput is None and row.shared is not None:
        return f"{spread(row.shared)} ({SHARED})"
    return spread(row.throughput)


def difference(decision: Decision | None, spec: str) -> str:
    """`+0.0012 (−0.0003 to +0.0027)`."""
    if decision is None or decision.difference is None:
        return UNKNOWN
    bounds = "" if decision.low is None else f" ({signed(decision.low, spec)} to {signed(decision.high, spec)})"
    return signed(decision.difference, spec) + bounds


def speedup(found: Speedup | None) -> str:
    """`1.53× (1.49 to 1.57)`."""
    if found is None:
        return UNKNOWN
    return f"{found.ratio:.2f}×" + ("" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})")


def decided(decision: Decision | None) -> str:
    """The decision, and what it rests on or what it takes to reach one: `not enough seeds to tell, about 3 more would`."""
    if decision is None:
        return UNKNOWN
    rests_on = decision.reason
    if decision.verdict.startswith("not"):
        more = f"about {decision.more_seeds} more would" if decision.more_seeds else "nor would 1,000 be"
        rests_on = TOO_FEW.get(decision.method, more)
    return decision.verdict + (f", {rests_on}" if rests_on else "")


def margin(group: Group, comparison: Comparison) -> str:
    relative = METRICS[group.metric].relative
    return f"{100 * comparison.margin:g} % of the control's" if relative else f"{comparison.margin:g}"


def places(group: Group) -> str:
    """`Batch size 128; NVIDIA H200.`: of all runs of the group; empty where neither is known."""
    runs = [run for row in group.rows for run in row.runs]
    sizes = ", ".join(f"{size:,}" for size in sorted({run.batch_size for run in runs if run.batch_size is not None}))
    devices = ", ".join(sorted({run.device for run in runs if run.device}))
    found = "; ".join(filter(None, (f"Batch size {sizes}" if sizes else "", devices)))
    return f"{found}." if found else ""


def all_runs(comparison: Comparison) -> list[Run]:
    return [run for group in comparison.groups for row in group.rows for run in row.runs]


def environment_rows(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """(name, value) of what the runs ran on; all values where they differ."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.environment.items():
            if key not in OF_ONE_RUN and value not in (None, [], {}):
                found.setdefault(key, {})[_text(value)] = None
    return [(key, "; ".join(values)) for key, values in sorted(found.items())]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)
