"""Which runs are compared with which control.

A control is a `precision-sparsity`, as fp32-dense, and may have run in several variants: with data.batch_size=128 and 256, say. A run is
compared with the variant whose changes it shares: of those variants that changed nothing that the run did not change too, the one with the
most changes. So amp-dense data.batch_size=256 meets fp32-dense data.batch_size=256 where that ran, and plain fp32-dense elsewhere; and
amp-dense precision.loss_scale.initial=1 meets plain fp32-dense. Where no variant fits but the control ran in one only, that one is taken.

A variant with which no other run shares its changes is no control but a setting under study, where a plainer variant ran: with
control=amp-dense, amp-dense precision.loss_scale.initial=1 meets plain amp-dense. Where no other precision or sparsity meets any variant,
as in a sweep over the learning rate alone, all are under study: each is compared with the plainest, in one table.

A control may also be one setting by its whole name, `fp32-dense optimizer.lr=0.05`: all others are compared with it, in one table. And it
may be left open: then it is the dense setting of highest precision that ran, else the sparse one; which one never depends on results.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mpx.report.commands import typed_text
from mpx.report.comparison import Run

AUTO, USUAL = "auto", "fp32-dense"
PRECISIONS = ("fp32", "o0", "tf32", "amp", "o1", "o2", "amp_bf16", "fp16_true", "o3", "bf16_true", "fp8")  # the highest first


@dataclass
class Members:
    """Runs of one model and data set with one control variant."""

    model: str
    data: str
    changes: str  # that all of them share: those of the control variant, if it is one of several
    wanted: str  # the control that was looked for
    note: str | None = None  # why this control was taken, or how to compare it where it stands alone
    control: list[Run] = field(default_factory=list)
    others: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))  # setting without the group's changes -> runs


def grouped(runs: Iterable[Run], control: str) -> list[Members]:
    """Sorted by model, data and changes; runs without any control come in a group of their own, last of their model and data.

    control: `precision-sparsity`, a setting's whole name, or "auto".
    """
    pairs = _pairs(runs)
    return [members for pair in sorted(pairs) for members in _members(*pair, pairs[pair], control)]


def names(runs: Iterable[Run]) -> list[str]:
    """What a control may be called: every precision-sparsity, then every setting without what all of its model and data set share."""
    runs = list(runs)
    whole = {short(run, shared) for pair in _pairs(runs).values() for shared in [_shared(pair)] for run in pair}
    return list(dict.fromkeys([*sorted({_plain(run) for run in runs}), *sorted(whole, key=natural)]))


def ran(runs: Iterable[Run], control: str) -> bool:
    """Whether any model and data set has this control."""
    if control == AUTO:
        return True
    if " " not in control:
        return any(_plain(run) == control for run in runs)
    return any(_called(control, pair) is not None for pair in _pairs(runs).values())


def short(run: Run, changes: str) -> str:
    """The run's setting without what its group shares."""
    own = [change for change in run.changes.split() if change not in changes.split()]
    return " ".join([f"{run.precision}-{run.sparsity}", *own])


def natural(setting: str) -> list[str | float]:
    """To sort by, numbers by their size: data.batch_size=32 before data.batch_size=128, optimizer.lr=1e-05 before 0.05."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", setting)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]


def _pairs(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    pairs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        pairs[run.model, run.data].append(run)
    return pairs


def _members(model: str, data: str, runs: list[Run], control: str) -> list[Members]:
    if " " in control:
        return [_one_table(Members(model, data, _shared(runs), control), runs, _called(control, runs))]
    wanted = _highest(runs) if control == AUTO else control
    variants = _controls(runs, wanted)
    if variants and not any(_plain(run) != wanted and _variant(run, variants) is not None for run in runs):
        plainest = min(variants, key=lambda changes: (len(changes.split()), natural(changes)))
        found = [_one_table(Members(model, data, _shared(runs), wanted), runs, f"{wanted} {plainest}".strip())]
    else:
        found = _by_variant(model, data, runs, wanted, variants)
    return [replace(members, note=_note(members, runs, control)) for members in found]


def _one_table(members: Members, runs: list[Run], control: str | None) -> Members:
    """All runs, against the setting `control`, as in Run.setting; None: there is none here."""
    for run in runs:
        if run.setting == control:
            members.control.append(run)
        else:
            members.others[short(run, members.changes)].append(run)
    return members


def _by_variant(model: str, data: str, runs: list[Run], control: str, variants: list[str]) -> list[Members]:
    found = {changes: Members(model, data, changes, control) for changes in variants}
    alone = [run for run in runs if not (_plain(run) == control and run.changes in found) and _variant(run, list(found)) is None]
    lonely = Members(model, data, _shared(alone), control)
    for run in runs:
        if _plain(run) == control and run.changes in found:
            found[run.changes].control.append(run)
        elif (variant := _variant(run, list(found))) is not None:
            found[variant].others[_label(run, variant)].append(run)
        else:
            lonely.others[short(run, lonely.changes)].append(run)
    return [found[changes] for changes in sorted(found, key=natural)] + ([lonely] if alone else [])


def _called(name: str, runs: list[Run]) -> str | None:
    """The setting, as in Run.setting, that `name` means among the runs of one model and data set: what all share need not be said."""
    plain, *changes = name.split()
    said, shared = set(changes), set(_shared(runs).split())
    for run in runs:
        own = set(run.changes.split())
        if _plain(run) == plain and said <= own <= said | shared:
            return run.setting
    return None


def _highest(runs: list[Run]) -> str:
    """The precision-sparsity that others are compared with where the user names none."""
    order = {precision: rank for rank, precision in enumerate(PRECISIONS)}
    best = min(runs, key=lambda run: (run.sparsity != "dense", order.get(run.precision, len(order)), run.precision, run.sparsity))
    return _plain(best)


def _note(members: Members, runs: list[Run], control: str) -> str | None:
    """runs: all of the model and data set. control: as the user named it."""
    if not members.control:
        return None
    taken, shared = members.control[0], _shared(runs)
    plain, name, whole = _plain(taken), short(taken, members.changes), short(taken, shared)
    if not members.others and whole != plain:
        return f"no other setting has {whole.partition(' ')[2]}; to compare all with this one, type it as {typed_text('control', whole)}"
    missing = ([f"no {USUAL}"] if control == AUTO and plain != USUAL else []) + ([f"no plain {plain}"] if name != plain else [])
    if not missing:
        return None
    others = sorted({short(run, shared) for run in runs} - {whole}, key=natural)
    another = f"; to take another, type it as {typed_text('control', others[0])}" if others else ""
    return f"the control is {name}, since {' and '.join(missing)} ran here{another}"


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
