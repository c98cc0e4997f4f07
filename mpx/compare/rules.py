"""The allowed values of a record or table. Any other value shows that mpx did not write it."""

from collections.abc import Iterator, Mapping
from typing import Any

from mpx.compare.looks import Plan
from mpx.compare.metric import GOALS, METRICS
from mpx.compare.own_loops import PROMISED
from mpx.compare.run import CODE_HASHES, RATES, SAMPLES, SIMPLE, Run
from mpx.printing import shown
from mpx.record.result import TRAINED_BEFORE, VALIDATED_AT
from mpx.runs.folder import DONE
from mpx.settings.fields import LABEL

MIN_RATE, MAX_RATE = 1e-12, 1e12  # of a rate, so that ratios and their squares stay finite
MAX_NUMBER = 1e39  # above every float32, and with a finite fourth power, which the statistics take
TEXTS = ("command", "started_at")  # parts of the environment that must be text
MAX_TEXT = 4096  # characters, which is the longest path


def wrong(run: Run) -> tuple[str, Any] | None:
    """(field, value) of the first impossible value; None if there is none."""
    return next(_wrong(run), None)


def _wrong(run: Run) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, kind in SIMPLE.items() if not _holds(value := getattr(run, name), kind))
    yield from ((name, value) for name in RATES if (value := getattr(run, name)) is not None and not MIN_RATE <= value <= MAX_RATE)
    yield from ((name, value) for name, value in run.metrics.items() if not _is_metric(name, value, own=run.own_task is True))
    yield from (
        ("changes", f"{key}={value}") for key, value in run.changes.items() if not (_is_word(key) and "=" not in key and is_text(value))
    )
    yield from (("environment", value) for key, value in run.environment.items() if not _is_known(key, value))
    if not LABEL.fits(run.label):
        yield "label", run.label
    if run.metric is not None and not (_is_word(run.metric) and "/" in run.metric):
        yield "metric", run.metric
    if run.metric_goal not in (None, *GOALS):
        yield "metric_goal", run.metric_goal
    if run.looks is not None and not _is_plan(run.looks):
        yield "looks", run.looks
    if run.status not in DONE:
        yield "status", run.status


def _is_plan(text: str) -> bool:
    try:
        return Plan.read(text).text == text
    except (ValueError, TypeError, RecursionError):
        return False


def is_text(value: Any) -> bool:
    """Whether it is one line of text that is safe to print."""
    return isinstance(value, str) and len(value) <= MAX_TEXT and "\n" not in value and shown(value) == value


def is_figure(value: Any, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def is_layer(layer: Mapping[str, Any]) -> bool:
    """Whether it is an entry of a record's `sparsity.layers` that the report can draw."""
    shares = [layer["density"], layer["kept_magnitude"]] if layer["pruned"] else []
    return is_text(layer["name"]) and all(share is None or is_figure(share, 0, MAX_NUMBER) for share in shares)


def metric_fits(name: str, value: Any) -> bool:
    """Whether it can be a value of this metric, of METRICS or of another task of mpx."""
    if name not in METRICS:
        return is_figure(value, -MAX_NUMBER, MAX_NUMBER)
    return is_figure(value, 0, MAX_NUMBER if METRICS[name].relative else 1)


def _is_metric(name: str, value: float, *, own: bool) -> bool:
    """own: the metric is of the user's own task, whose test/accuracy may be in percent."""
    if not (_is_word(name) and "/" in name):  # the slash tells its column of results.csv from others
        return False
    return is_figure(value, -MAX_NUMBER, MAX_NUMBER) if own else metric_fits(name, value)


def _is_word(text: str) -> bool:
    return is_text(text) and len(text.split()) == 1


def _is_known(key: str, value: Any) -> bool:
    """A part of the environment is text, a number, or a list or mapping of them."""
    if key in TEXTS:
        return _is_simple(value) and isinstance(value, str)
    if key in (CODE_HASHES, SAMPLES) and not isinstance(value, dict):
        return False
    if key == PROMISED:
        return is_figure(value, 0, 1)
    if key == TRAINED_BEFORE and not isinstance(value, list):
        return False
    if key == VALIDATED_AT and not (isinstance(value, list) and len(value) == 2):
        return False
    parts = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else [value]
    return is_text(key) and all(map(_is_simple, parts))


def _is_simple(value: Any) -> bool:
    """A command line may contain line breaks and tabs."""
    if isinstance(value, str):
        return is_text(" ".join(value.split()))
    return value is None or isinstance(value, bool) or is_figure(value, -MAX_NUMBER, MAX_NUMBER)


def _holds(value: Any, kind: Any) -> bool:
    """Whether the value has this type and, if it is a number, is bounded; no figure of a run is negative. Text is not empty."""
    if isinstance(value, bool):
        return kind == (bool | None)
    if isinstance(value, (int, float)):
        return is_figure(value, 0, MAX_NUMBER) and (isinstance(value, kind) or kind == (float | None))
    return isinstance(value, kind) and (value is None or (value != "" and is_text(value)))
