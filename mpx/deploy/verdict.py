"""The verdict on several ways to serve one run: a sentence, and the figures that it rests on in another."""

import math
from collections.abc import Sequence

from mpx.compare.served import SERVED_WITHIN, format_of
from mpx.deploy.record import Row
from mpx.system.printing import number, rate, signed


def verdict(rows: Sequence[Row]) -> list[str]:
    """rows: of deploy.json, of one run and device, in the order in which they were asked for. What is served
    in FP32 is the reference, or else the first row. Empty if all are served alike.
    """
    reference = next((row for row in rows if format_of(row) == "fp32" and not row["sparse_layers"]), rows[0])
    others = [row for row in rows if _name(row) != _name(reference)]
    if not others:
        return []
    if (unsure := next((row for row in rows if row["exclusive"] is not True), None)) is not None:
        return [f"No verdict, since {unsure['exclusive_reason']} while {_name(unsure)} was measured."]
    accurate = [row for row in others if _loss(row, reference) <= SERVED_WITHIN]
    faster = [row for row in accurate if _rate(row) > _rate(reference)]
    best = max(faster or others, key=_rate)
    no_loss = f"at no loss of {_metric(reference)}"
    if faster:
        times = _rate(best) / _rate(reference)
        first = f"{_name(best)} answers {times:#.3g} × as fast as {_name(reference)} {no_loss}."
    else:
        first = f"No other way answers faster than {_name(reference)} {no_loss}."
    return [first, f"{_name(best)}: {_evidence(best, reference)}."]


def _name(row: Row) -> str:
    return format_of(row).upper() + (" with 2:4 kernels" if row["sparse_layers"] else "")


def _rate(row: Row) -> float:
    return row["serve_samples_per_s"]


def _metric(row: Row) -> str:
    return row["metric"]["name"].removeprefix("test/")


def _loss(row: Row, reference: Row) -> float:
    """Of a share such as the accuracy, the difference; of an error, the relative one."""
    name = row["metric"]["name"]
    value, expected = row["metrics"].get(name), reference["metrics"].get(name)
    if value is None or expected is None:
        return math.inf
    return expected - value if row["metric"]["goal"] == "max" else (value - expected) / abs(expected)


def _evidence(row: Row, reference: Row) -> str:
    name, share, both = _metric(row), row["metric"]["goal"] == "max", (row, reference)
    factor, spec, unit = (100, ".1f", " %") if share else (1, "#.4g", "")
    values = [one["metrics"].get(row["metric"]["name"]) for one in both]
    value, expected = (number(value and factor * value, spec, unit) for value in values)
    change = f", difference {signed(-100 * _loss(row, reference), '.1f')} points" if share else ""
    margin = f"{100 * SERVED_WITHIN:g} {'points' if share else '%'}"
    rates = " against ".join(rate(_rate(one)) for one in both)
    at = row["speed"][-1]["batch"]
    return f"{name} {value} against {expected}{change}; margin {margin}; {rates} samples/s at batch {at:,}"
