"""How figures and names read for people, the same in the page, in Markdown, in plots and in TensorBoard."""

import math
from collections.abc import Iterable

from mpx.report.comparison import Comparison, Decision, Estimate, Group, Run, Speedup

UNKNOWN = "–"


def metric_of(group: Group, comparison: Comparison) -> str:
    """The metric that this group is judged by."""
    return getattr(group, "metric", None) or comparison.metric


def lower_is_better(metric: str) -> bool:
    return metric.rsplit("/", 1)[-1] in ("perplexity", "loss")


def metric_name(metric: str) -> str:
    """`test/accuracy` -> `test accuracy`."""
    return metric.replace("/", " ")


def plain(value: float | None, spec: str) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:{spec}}"


def metric_spec(metric: str) -> str:
    return ".2f" if metric.endswith("perplexity") else ".4f"


def rate_spec(value: float) -> str:
    """About three digits or all before the point: 0.482, 31.5, 1,234."""
    return ",.0f" if abs(value) >= 100 else ".3g"


def spread(estimate: Estimate | None, spec: str) -> str:
    """`0.9917 ± 0.0012`; without the spread for a single value."""
    if estimate is None:
        return UNKNOWN
    return plain(estimate.mean, spec) + ("" if estimate.std is None else f" ± {plain(estimate.std, spec)}")


def rate(estimate: Estimate | None) -> str:
    return UNKNOWN if estimate is None else spread(estimate, rate_spec(estimate.mean))


def seconds(estimate: Estimate | None) -> str:
    return UNKNOWN if estimate is None else spread(estimate, ",.0f" if estimate.mean >= 100 else ".1f")


def difference(decision: Decision | None, spec: str) -> str:
    """`+0.0012 [−0.0003, +0.0027]`."""
    if decision is None:
        return UNKNOWN
    return signed(decision.difference, spec) + interval(decision.low, decision.high, lambda value: signed(value, spec))


def speedup(found: Speedup | None) -> str:
    """`1.53× [1.49, 1.57]`."""
    if found is None:
        return UNKNOWN
    return f"{found.ratio:.2f}×" + interval(found.low, found.high, lambda value: f"{value:.2f}")


def signed(value: float, spec: str) -> str:
    return f"{value:+{spec}}".replace("-", "−")


def interval(low: float | None, high: float | None, text) -> str:
    if low is None or high is None:
        return ""
    return " [" + ", ".join(text(end) if math.isfinite(end) else ("∞" if end > 0 else "−∞") for end in (low, high)) + "]"


def verdict(decision: Decision | None) -> str:
    """The decision with what is needed to reach one."""
    if decision is None:
        return UNKNOWN
    more = f" (about {decision.more_seeds} more)" if decision.more_seeds else ""
    return decision.verdict + more


def seeds(completed: int, diverged: int) -> str:
    return str(completed) if not diverged else f"{completed} + {diverged} diverged"


def all_runs(comparison: Comparison) -> list[Run]:
    return [run for group in comparison.groups for row in group.rows for run in row.runs]


def environment_rows(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """(name, value) of what all runs share, `several: …` where they differ; what differs in each run by its nature is left out."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.environment.items():
            if key not in ("command", "started_at", "resumed_from_steps") and value not in (None, [], {}):
                found.setdefault(key, {})[_text(value)] = None
    return [(key, next(iter(values)) if len(values) == 1 else "several: " + "; ".join(values)) for key, values in sorted(found.items())]


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def margin_text(margin: float, metric: str) -> str:
    """The margin in words: absolute for accuracy, relative for perplexity."""
    return f"{margin:.3g} relative" if lower_is_better(metric) else f"{margin:.3g} absolute"
