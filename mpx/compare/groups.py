"""Which runs are compared with which control.

A control is a `precision-sparsity`, as fp32-dense, and may have run in several variants: with data.batch_size=128 and 256, say. A run is
compared with the variant whose changes it shares: of those variants that changed nothing that the run did not change too, the one with the
most changes. So amp-dense data.batch_size=256 meets fp32-dense data.batch_size=256 where that ran, and plain fp32-dense elsewhere; and
amp-dense precision.loss_scale.initial=1 meets plain fp32-dense. Where no variant fits but the control ran in one only, that one is taken.

A variant whose changes no other run shares is a setting under study and no control, if a plainer variant ran: with control=amp-dense,
amp-dense precision.loss_scale.initial=1 meets plain amp-dense. Where no other precision or sparsity meets any variant, as in a sweep over
the learning rate alone, all are under study: each is compared with the plainest, in one table.

A control may also be one setting by its whole name, `fp32-dense optimizer.lr=0.05`: all others are compared with it, in one table. Or the
user leaves it open (control.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mpx.compare.comparison import Changes, Run, text_of
from mpx.compare.control import AUTO, by_pair, called, highest, lacking, note
from mpx.compare.names import label, natural, shared_changes, short


@dataclass
class Members:
    """Runs of one model and data set with one control variant."""

    model: str
    data: str
    changes: Changes  # that all of them share: those of the control variant, if it is one of several
    note: str | None = None  # why this control was taken or there is none, or how to compare one that stands alone
    control: list[Run] = field(default_factory=list)
    others: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))  # setting without the group's changes -> runs


def grouped(runs: Iterable[Run], control: str) -> list[Members]:
    """Sorted by model, data and changes. Runs without any control come last of their model and data, in a group of their own.

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
        plainest = min(variants, key=lambda changes: (len(changes), natural(text_of(changes))))
        found = [_one_table(Members(model, data, shared_changes(runs)), runs, f"{wanted} {text_of(plainest)}".strip())]
    else:
        found = _by_variant(model, data, runs, wanted, variants)
    for members in found:
        if members.control:
            members.note = note(members.control, members.changes, runs, control, alone=not members.others)
        else:
            members.note = lacking(runs, wanted)
    return found


def _one_table(members: Members, runs: list[Run], control: str | None) -> Members:
    """All runs against the setting `control`, named as in Run.setting; None where it did not run."""
    for run in runs:
        if run.setting == control:
            members.control.append(run)
        else:
            members.others[short(run, members.changes)].append(run)
    return members


def _by_variant(model: str, data: str, runs: list[Run], control: str, variants: Sequence[Changes]) -> list[Members]:
    found = [Members(model, data, changes) for changes in sorted(variants, key=lambda changes: natural(text_of(changes)))]
    alone: list[Run] = []
    for run in runs:
        variant = run.changes if run.plain == control and run.changes in variants else _variant(run, variants)
        members = next((one for one in found if one.changes == variant), None)
        if members is None:
            alone.append(run)
        elif run.plain == control and run.changes == variant:
            members.control.append(run)
        else:
            members.others[label(run, variant)].append(run)
    return found + ([_one_table(Members(model, data, shared_changes(alone)), alone, None)] if alone else [])


def _controls(runs: list[Run], control: str) -> list[Changes]:
    """The variants of the control that others are compared with: the plainest, and those whose changes another setting shares."""
    variants = {text_of(run.changes): run.changes for run in runs if run.plain == control}.values()
    others = {text_of(run.changes): run.changes for run in runs if run.plain != control}.values()
    return [
        own for own in variants
        if not any(plainer.items() < own.items() for plainer in variants) or any(own.items() <= other.items() for other in others)
    ]  # fmt: skip


def _variant(run: Run, variants: Sequence[Changes]) -> Changes | None:
    """The variant of the control that this run is compared with."""
    fitting = [variant for variant in variants if variant.items() <= run.changes.items()]
    if fitting:
        return max(fitting, key=lambda variant: (len(variant), text_of(variant)))
    return variants[0] if len(variants) == 1 else None
