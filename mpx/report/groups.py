"""Which runs are compared with which control.

A control is a `precision-sparsity`, as fp32-dense, and may have run in several variants: with data.batch_size=128 and 256, say. A run is
compared with the variant whose changes it shares: of those variants that changed nothing that the run did not change too, the one with the
most changes. So amp-dense data.batch_size=256 meets fp32-dense data.batch_size=256 where that ran, and plain fp32-dense elsewhere; and
amp-dense precision.loss_scale.initial=1 meets plain fp32-dense. Where no variant fits but the control ran in one only, that one is taken.

A variant with which no other run shares its changes is no control but a setting under study, where a plainer variant ran: with
control=amp-dense, amp-dense precision.loss_scale.initial=1 meets plain amp-dense.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpx.report.comparison import Run


@dataclass
class Members:
    """Runs of one model and data set with one control variant."""

    model: str
    data: str
    changes: str  # those of the control; without a control, those that all runs share
    control: list[Run] = field(default_factory=list)
    others: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))  # setting without the group's changes -> runs


def grouped(runs: Iterable[Run], control: str) -> list[Members]:
    """Sorted by model, data and changes; runs without any control come in a group of their own, last of their model and data."""
    pairs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        pairs[run.model, run.data].append(run)
    return [members for pair in sorted(pairs) for members in _members(*pair, pairs[pair], control)]


def short(run: Run, changes: str) -> str:
    """The run's setting without what its group shares."""
    own = [change for change in run.changes.split() if change not in changes.split()]
    return " ".join([f"{run.precision}-{run.sparsity}", *own])


def natural(setting: str) -> list[str | int]:
    """To sort by, numbers by their size: data.batch_size=32 before data.batch_size=128."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", setting))]


def _members(model: str, data: str, runs: list[Run], control: str) -> list[Members]:
    found = {changes: Members(model, data, changes) for changes in _controls(runs, control)}
    alone = [run for run in runs if not (_plain(run) == control and run.changes in found) and _variant(run, list(found)) is None]
    lonely = Members(model, data, _shared(alone))
    for run in runs:
        if _plain(run) == control and run.changes in found:
            found[run.changes].control.append(run)
        elif (variant := _variant(run, list(found))) is not None:
            found[variant].others[_label(run, variant)].append(run)
        else:
            lonely.others[short(run, lonely.changes)].append(run)
    return [found[changes] for changes in sorted(found, key=natural)] + ([lonely] if alone else [])


def _controls(runs: list[Run], control: str) -> list[str]:
    """Of the control's variants those that others are compared with: the plainest, and those whose changes another setting shares."""
    variants = {run.changes: set(run.changes.split()) for run in runs if _plain(run) == control}
    others = [set(changes.split()) for changes in {run.changes for run in runs if _plain(run) != control}]
    return [
        changes for changes, own in variants.items()
        if not any(plainer < own for plainer in variants.values()) or any(own <= other for other in others)
    ]  # fmt: skip


def _plain(run: Run) -> str:
    return f"{run.precision}-{run.sparsity}"


def _variant(run: Run, variants: list[str]) -> str | None:
    """Of the control's variants the one that this run is compared with."""
    own = set(run.changes.split())
    fitting = [variant for variant in variants if set(variant.split()) <= own]
    if fitting:
        return max(fitting, key=lambda variant: (len(variant.split()), variant))
    return variants[0] if len(variants) == 1 else None


def _label(run: Run, variant: str) -> str:
    """Its setting within the group, which also says what the control changed and it did not."""
    lacking = [change for change in variant.split() if change not in run.changes.split()]
    return short(run, variant) + (f" (without {' '.join(lacking)})" if lacking else "")


def _shared(runs: list[Run]) -> str:
    if not runs:
        return ""
    return " ".join(sorted(set.intersection(*(set(run.changes.split()) for run in runs))))
