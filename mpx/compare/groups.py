"""Which runs are compared with which control.

A control is a `precision-sparsity`, as fp32-dense, and may have run in several variants: with data.batch_size=128 and 256, say. A run is
compared with the variant whose changes it shares: of those variants that changed nothing that the run did not change too, the one with the
most changes. So amp-dense data.batch_size=256 meets fp32-dense data.batch_size=256 where that ran, and plain fp32-dense elsewhere; and
amp-dense precision.loss_scale.initial=1 meets plain fp32-dense. Where no variant fits but the control ran in one only, that one is taken.

A variant with which no other run shares its changes is no control but a setting under study, where a plainer variant ran: with
control=amp-dense, amp-dense precision.loss_scale.initial=1 meets plain amp-dense. Where no other precision or sparsity meets any variant,
as in a sweep over the learning rate alone, all are under study: each is compared with the plainest, in one table.

A control may also be one setting by its whole name, `fp32-dense optimizer.lr=0.05`: all others are compared with it, in one table. Or it
may be left open (control.py).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpx.compare.comparison import Run
from mpx.compare.control import AUTO, by_pair, called, highest, lacking, note
from mpx.compare.names import label, natural, shared_changes, short


@dataclass
class Members:
    """Runs of one model and data set with one control variant."""

    model: str
    data: str
    changes: str  # that all of them share: those of the control variant, if it is one of several
    note: str | None = None  # why this control was taken or there is none, or how to compare one that stands alone
    control: list[Run] = field(default_factory=list)
    others: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))  # setting without the group's changes -> runs


def grouped(runs: Iterable[Run], control: str) -> list[Members]:
    """Sorted by model, data and changes; runs without any control come in a group of their own, last of their model and data.

    control: `precision-sparsity`, a setting's whole name, or "auto".
    """
    pairs = by_pair(runs)
    return [members for pair in sorted(pairs) for members in _members(*pair, pairs[pair], control)]


def _members(model: str, data: str, runs: list[Run], control: str) -> list[Members]:
    if " " in control:
        setting = called(control, runs)
        told = None if setting else lacking(runs, control)
        return [_one_table(Members(model, data, shared_changes(runs), told), runs, setting)]
    wanted = highest(runs) if control == AUTO else control
    variants = _controls(runs, wanted)
    if variants and not any(run.plain != wanted and _variant(run, variants) is not None for run in runs):
        plainest = min(variants, key=lambda changes: (len(changes.split()), natural(changes)))
        found = [_one_table(Members(model, data, shared_changes(runs)), runs, f"{wanted} {plainest}".strip())]
    else:
        found = _by_variant(model, data, runs, wanted, variants)
    for members in found:
        if members.control:
            members.note = note(members.control, members.changes, runs, control, alone=not members.others)
        else:
            members.note = lacking(runs, wanted)
    return found


def _one_table(members: Members, runs: list[Run], control: str | None) -> Members:
    """All runs, against the setting `control`, as in Run.setting; None: there is none here."""
    for run in runs:
        if run.setting == control:
            members.control.append(run)
        else:
            members.others[short(run, members.changes)].append(run)
    return members


def _by_variant(model: str, data: str, runs: list[Run], control: str, variants: list[str]) -> list[Members]:
    found = {changes: Members(model, data, changes) for changes in variants}
    alone = [run for run in runs if not (run.plain == control and run.changes in found) and _variant(run, list(found)) is None]
    lonely = Members(model, data, shared_changes(alone))
    for run in runs:
        if run.plain == control and run.changes in found:
            found[run.changes].control.append(run)
        elif (variant := _variant(run, list(found))) is not None:
            found[variant].others[label(run, variant)].append(run)
        else:
            lonely.others[short(run, lonely.changes)].append(run)
    return [found[changes] for changes in sorted(found, key=natural)] + ([lonely] if alone else [])


def _controls(runs: list[Run], control: str) -> list[str]:
    """Of the control's variants those that others are compared with: the plainest, and those whose changes another setting shares."""
    variants = {run.changes: set(run.changes.split()) for run in runs if run.plain == control}
    others = [set(changes.split()) for changes in {run.changes for run in runs if run.plain != control}]
    return [
        changes for changes, own in variants.items()
        if not any(plainer < own for plainer in variants.values()) or any(own <= other for other in others)
    ]  # fmt: skip


def _variant(run: Run, variants: list[str]) -> str | None:
    """Of the control's variants the one that this run is compared with."""
    own = set(run.changes.split())
    fitting = [variant for variant in variants if set(variant.split()) <= own]
    if fitting:
        return max(fitting, key=lambda variant: (len(variant.split()), variant))
    return variants[0] if len(variants) == 1 else None
