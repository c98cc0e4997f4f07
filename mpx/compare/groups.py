"""Assign each run to the control that it is compared with.

A control is a `precision-sparsity` such as fp32-dense. It may have run in several variants, for example with data.batch_size=128 and 256.
A run is compared with a variant that changes nothing the run leaves unchanged; of several such variants, with the one that changes most.
For example, amp-dense data.batch_size=256 is compared with fp32-dense data.batch_size=256 if that ran, and otherwise with plain fp32-dense;
amp-dense precision.loss_scale.initial=1 is compared with plain fp32-dense. If no variant fits but the control ran in only one variant, that
variant is used.

If no other run shares a variant's changes and a plainer variant ran, the variant is a setting under study instead of a control: with
control=amp-dense, amp-dense precision.loss_scale.initial=1 is compared with plain amp-dense. If no other precision or sparsity fits any
variant, as in a sweep over the learning rate, all variants are under study and are compared with the plainest, in one table.

The user may also name one full setting as the control, such as `fp32-dense optimizer.lr=0.05`. All others are then compared with it, in one
table. Or the user leaves the control open (control.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mpx.compare.control import AUTO, by_pair, highest, lacking, note, setting_named
from mpx.compare.names import label, natural, shared_changes, short
from mpx.compare.run import Changes, Run, text_of


@dataclass
class Members:
    """Runs of one model and data set with one control variant."""

    model: str
    data: str
    changes: Changes  # changes that all of them share: those of the control variant, if there are several
    note: str | None = None  # why this control was chosen or is missing, or how to compare it if it is alone
    control: list[Run] = field(default_factory=list)
    others: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))  # setting without the group's changes -> runs


def grouped(runs: Iterable[Run], control: str) -> list[Members]:
    """The groups, sorted by model, data and changes. Runs without a control form the last group of their model and data.

    control: `precision-sparsity`, a full setting, or "auto".
    """
    pairs = by_pair(runs)
    return [members for pair in sorted(pairs) for members in _members(*pair, pairs[pair], control)]


def _members(model: str, data: str, runs: list[Run], control: str) -> list[Members]:
    if " " in control:
        setting = setting_named(control, runs)
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
    """Compare all runs with the setting `control` (a Run.setting); None if it did not run."""
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
    """The control's variants for comparison: the plainest ones, and those whose changes another setting shares."""
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
