"""Assign each run to the control that it is compared with, and name the settings of a group.

The user names a control: a full setting such as `fp32-dense optimizer.lr=0.05`, or a precision and sparsity
such as fp32-dense. With AUTO it is the dense setting of highest precision that ran, or else the sparse one.
The choice never depends on results.

A precision and sparsity may have run in several variants, for example with data.batch_size=128 and 256. A
variant fits a run that has all of its changes. The run is compared with the fitting variant that has most.
For example, amp-dense data.batch_size=256 is compared with fp32-dense data.batch_size=256 if that ran, and
otherwise with plain fp32-dense; amp-dense precision.loss_scale.initial=1 is compared with plain fp32-dense.
If no variant fits but the control ran in only one, that one is used.

If no other run shares a variant's changes and a plainer variant ran, the variant is a setting under study
instead of a control: with control=amp-dense, amp-dense precision.loss_scale.initial=1 is compared with plain
amp-dense. If no other precision or sparsity fits any variant, as in a sweep over the learning rate, all
variants are under study and are compared with the plainest, in one table. With a full setting as the control,
all others are compared with it, in one table.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mpx.compare.run import AUTO, Changes, Run, text_of
from mpx.errors import UserError
from mpx.settings.compare import typed_text

USUAL = "fp32-dense"
# highest first
PRECISIONS = ("fp32", "o0", "tf32", "amp", "o1", "o2", "amp_bf16", "fp16_true", "o3", "bf16_true", "fp8")
# regular expression in another precision's name, as Lightning or a user's loop has it -> the one that ranks
# alike: float64, 32-true, bfloat16, half
ALIKE = (
    ("64|double", "fp32"), ("tf32", "tf32"), ("32|single", "fp32"), ("bf16|bfloat", "amp_bf16"), ("16|half",
    "amp"), ("8", "fp8")
)  # fmt: skip


@dataclass
class Members:
    """Runs of one model and data set with one control variant."""

    model: str
    data: str
    changes: Changes  # changes that all of them share: those of the control variant, if there are several
    note: str | None = None  # why this control was chosen or is missing, or how to compare it if it is alone
    control: list[Run] = field(default_factory=list)
    # setting, without `changes` -> runs
    others: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))

    @property
    def runs(self) -> list[Run]:
        return [*self.control, *(run for runs in self.others.values() for run in runs)]


def grouped(runs: Iterable[Run], control: str) -> list[Members]:
    """The groups, sorted by model, data and changes. Runs without a control form the last group of their
    model and data.

    control: `precision-sparsity`, a full setting, or AUTO.
    """
    pairs = by_pair(runs)
    return [members for pair in sorted(pairs) for members in _members(*pair, pairs[pair], control)]


def _members(model: str, data: str, runs: list[Run], control: str) -> list[Members]:
    if " " in control:
        setting = setting_named(control, runs)
        missing = None if setting else _lacking(runs, control)
        return [_one_table(Members(model, data, shared_changes(runs), missing), runs, setting)]
    wanted = highest(runs) if control == AUTO else control
    variants = _controls(runs, wanted)
    if variants and not any(run.plain != wanted and _variant(run, variants) is not None for run in runs):
        plainest = min(variants, key=lambda changes: (len(changes), natural(text_of(changes))))
        one = Members(model, data, shared_changes(runs))
        groups = [_one_table(one, runs, f"{wanted} {text_of(plainest)}".strip())]
    else:
        groups = _by_variant(model, data, runs, wanted, variants)
    for members in groups:
        members.note = _note(members, runs, control) if members.control else _lacking(runs, wanted)
    return groups


def _one_table(members: Members, runs: list[Run], control: str | None) -> Members:
    """Compare all runs with the setting `control` (a Run.setting); None if it did not run."""
    for run in runs:
        if run.setting == control:
            members.control.append(run)
        else:
            members.others[short(run, members.changes)].append(run)
    return members


def _by_variant(
    model: str, data: str, runs: list[Run], control: str, variants: Sequence[Changes]
) -> list[Members]:
    groups = [
        Members(model, data, changes)
        for changes in sorted(variants, key=lambda changes: natural(text_of(changes)))
    ]
    alone: list[Run] = []
    for run in runs:
        variant = run.changes if run.plain == control and run.changes in variants else _variant(run, variants)
        members = next((one for one in groups if one.changes == variant), None)
        if members is None:
            alone.append(run)
        elif run.plain == control and run.changes == variant:
            members.control.append(run)
        else:
            members.others[_label(run, members.changes)].append(run)
    return groups + ([_one_table(Members(model, data, shared_changes(alone)), alone, None)] if alone else [])


def _controls(runs: list[Run], control: str) -> list[Changes]:
    """The control's variants for comparison: those that no other variant is a part of, and those whose
    changes another setting shares.
    """
    variants = {text_of(run.changes): run.changes for run in runs if run.plain == control}.values()
    others = {text_of(run.changes): run.changes for run in runs if run.plain != control}.values()
    return [
        changes
        for changes in variants
        if not any(plainer.items() < changes.items() for plainer in variants)
        or any(changes.items() <= other.items() for other in others)
    ]


def _variant(run: Run, variants: Sequence[Changes]) -> Changes | None:
    """The variant of the control that this run is compared with."""
    fitting = [variant for variant in variants if variant.items() <= run.changes.items()]
    if fitting:
        return max(fitting, key=lambda variant: (len(variant), text_of(variant)))
    return variants[0] if len(variants) == 1 else None


def by_pair(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    pairs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        pairs[run.model, run.data].append(run)
    return pairs


def refuse_other_contents(runs: Iterable[Run]) -> None:
    """Raise UserError if data of one name had different contents, since the settings then do not explain the
    differences.
    """
    first: dict[str, Run] = {}
    for run in runs:
        if run.contents is None:
            continue
        other = first.setdefault(run.data, run)
        if other.contents != run.contents:
            raise UserError(
                f"data.name={run.data}: {other.folder or other.setting} and {run.folder or run.setting} "
                "were trained on different "
                "data of this name, so that they cannot be compared. Train one of them again with "
                "data.name=NAME, or in another study=."
            )


def ran(runs: Iterable[Run], control: str) -> bool:
    """Whether this control ran for any model and data set."""
    if control == AUTO:
        return True
    if " " not in control:
        return any(run.plain == control for run in runs)
    return any(setting_named(control, pair) is not None for pair in by_pair(runs).values())


def by_label(runs: Sequence[Run], control: str) -> str:
    """The setting with the label `control`, if exactly one has it and no control is named so; otherwise
    `control` itself.
    """
    labelled = {run.setting for run in runs if run.label == control}
    return labelled.pop() if len(labelled) == 1 and not ran(runs, control) else control


def setting_named(name: str, runs: list[Run]) -> str | None:
    """The Run.setting that `name` means among the runs of one model and data set. The name may omit changes
    that all share.
    """
    plain, *words = name.split()
    # a run spells 1 for 1.0
    named = {
        key: re.sub(r"^(-?\d+)\.0$", r"\1", value)
        for key, value in (word.partition("=")[::2] for word in words)
    }
    shared = shared_changes(runs).items()
    for run in runs:
        if run.plain == plain and named.items() <= run.changes.items() <= named.items() | shared:
            return run.setting
    return None


def highest(runs: list[Run]) -> str:
    """The default control: the dense precision-sparsity of highest precision, or else the sparse one."""
    return min(
        runs, key=lambda run: (run.sparsity != "dense", rank(run.precision), run.precision, run.sparsity)
    ).plain


def rank(precision: str) -> int:
    """Its place in PRECISIONS."""
    if precision in PRECISIONS:
        return PRECISIONS.index(precision)
    return next(
        (PRECISIONS.index(like) for part, like in ALIKE if re.search(part, precision.lower())),
        len(PRECISIONS),
    )


def _lacking(runs: list[Run], control: str) -> str:
    """Why some runs of a model and data set have no control, and how to compare them. control: the name of
    the missing one.
    """
    variants = settings(run for run in runs if run.plain == control)
    if not variants:
        return f"no run of {control} here to compare with"
    typed = typed_text("control", variants[0])
    return f"these runs fit no run of {control}; to compare all with one setting, type {typed}"


def _note(members: Members, runs: list[Run], control: str) -> str | None:
    """Which control was taken and how to take another, where it is not the usual one, or nothing is compared
    with it.

    runs: all runs of the model and data set. control: the name that the user gave.
    """
    taken = members.control[0]
    name, whole = short(taken, members.changes), short(taken, shared_changes(runs))
    others = [one for one in settings(runs) if one != whole]
    if members.others and name == (USUAL if control == AUTO else taken.plain):
        return None
    another = f"; to take another, type it as {typed_text('control', others[0])}" if others else ""
    return f"the control is {name}{another}"


def settings(runs: Iterable[Run]) -> list[str]:
    """The settings of these runs of one model and data set, without the changes that all of them share."""
    runs = list(runs)
    shared = shared_changes(runs)
    return sorted({short(run, shared) for run in runs}, key=natural)


def short(run: Run, changes: Changes) -> str:
    """The run's setting without the group's shared `changes`."""
    return " ".join(filter(None, (run.plain, text_of(_without(run.changes, changes)))))


def _label(run: Run, variant: Changes) -> str:
    """The run's setting in the group of a control variant, including the control's changes that the run
    lacks.
    """
    lacking = text_of(_without(variant, run.changes))
    return short(run, variant) + (f" (without {lacking})" if lacking else "")


def labels(runs: Iterable[Run]) -> dict[str, str]:
    """Run.setting -> the user's label, where it is the name of one setting only. runs: those of one model and
    data set.

    If a setting has several labels, the newest counts.
    """
    runs = sorted(runs, key=lambda run: run.environment.get("started_at") or "")
    given = {run.setting: run.label for run in runs if run.label}
    names = [*given.values(), *{run.setting for run in runs}, *{run.plain for run in runs}]
    return {setting: label for setting, label in given.items() if names.count(label) == 1}


def _without(changes: Changes, others: Changes) -> dict[str, str]:
    return {key: value for key, value in changes.items() if others.get(key) != value}


def shared_changes(runs: Iterable[Run]) -> dict[str, str]:
    """The changes that all runs have."""
    first, *others = [run.changes for run in runs] or [{}]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def natural(setting: str) -> list[str | float]:
    """A sort key that orders numbers by size: data.batch_size=32 before data.batch_size=128,
    optimizer.lr=1e-05 before 0.05.
    """
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", setting)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]
