"""Choose the control: the setting that the others are compared with.

The user names a full setting, or a precision and sparsity. With AUTO, the control is the dense setting of highest precision that ran, or
else the sparse setting of highest precision. The choice never depends on results.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product

from mpx.compare.commands import typed_text
from mpx.compare.names import natural, shared_changes, short
from mpx.compare.run import Changes, Run
from mpx.errors import UserError

AUTO, USUAL = "auto", "fp32-dense"
PRECISIONS = ("fp32", "o0", "tf32", "amp", "o1", "o2", "amp_bf16", "fp16_true", "o3", "bf16_true", "fp8")  # highest first
# Part of another name, as a loop of the user's or Lightning has it -> the one whose rank it has: float64, 32-true, bfloat16, half
ALIKE = (("64|double", "fp32"), ("tf32", "tf32"), ("32|single", "fp32"), ("bf16|bfloat", "amp_bf16"), ("16|half", "amp"), ("8", "fp8"))


def by_pair(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    pairs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        pairs[run.model, run.data].append(run)
    return pairs


def names(runs: Iterable[Run]) -> list[str]:
    """All valid names of a control: each precision-sparsity, then each setting without the changes its model and data set share."""
    runs = list(runs)
    whole = {short(run, shared) for pair in by_pair(runs).values() for shared in [shared_changes(pair)] for run in pair}
    return list(dict.fromkeys([*sorted({run.plain for run in runs}), *sorted(whole, key=natural)]))


def ran(runs: Iterable[Run], control: str) -> bool:
    """Whether this control ran for any model and data set."""
    if control == AUTO:
        return True
    if " " not in control:
        return any(run.plain == control for run in runs)
    return any(setting_named(control, pair) is not None for pair in by_pair(runs).values())


def by_label(runs: Sequence[Run], control: str) -> str:
    """The setting with the label `control`, if exactly one has it and no control is named so; otherwise `control` itself."""
    if ran(runs, control):
        return control
    labelled = {run.setting for run in runs if run.label == control}
    return labelled.pop() if len(labelled) == 1 else control


def refuse_other_contents(runs: Iterable[Run]) -> None:
    """Raise UserError if data of one name had different contents, since the settings then do not explain the differences."""
    first: dict[str, Run] = {}
    for run in runs:
        if run.contents is None:
            continue
        other = first.setdefault(run.data, run)
        if other.contents != run.contents:
            raise UserError(
                f"data.name={run.data}: {other.folder or other.setting} and {run.folder or run.setting} were trained on different data of "
                "this name, so that they cannot be compared. Train one of them again with data.name=NAME, or in another study=."
            )


def setting_named(name: str, runs: list[Run]) -> str | None:
    """The Run.setting that `name` means among the runs of one model and data set. The name may omit changes that all of them share."""
    plain, *words = name.split()
    typed = dict(word.partition("=")[::2] for word in words)
    whole = {key: re.sub(r"^(-?\d+)\.0$", r"\1", value) for key, value in typed.items()}  # 1 for 1.0, as runs spell it
    shared = shared_changes(runs).items()
    for run, named in product(runs, (typed.items(), whole.items())):
        if run.plain == plain and named <= run.changes.items() <= named | shared:
            return run.setting
    return None


def highest(runs: list[Run]) -> str:
    """The default control: the dense precision-sparsity of highest precision, or else the sparse one."""
    return min(runs, key=lambda run: (run.sparsity != "dense", _rank(run.precision), run.precision, run.sparsity)).plain


def _rank(precision: str) -> int:
    if precision in PRECISIONS:
        return PRECISIONS.index(precision)
    return next((PRECISIONS.index(like) for part, like in ALIKE if re.search(part, precision.lower())), len(PRECISIONS))


def lacking(runs: list[Run], control: str) -> str:
    """Why some runs of a model and data set have no control, and how to compare them. control: the name of the missing control."""
    shared = shared_changes(runs)
    variants = sorted({short(run, shared) for run in runs if run.plain == control}, key=natural)
    if not variants:
        return f"no run of {control} here to compare with"
    return f"no run of {control} without other changes; to compare all with one that ran, type it as {typed_text('control', variants[0])}"


def note(taken: list[Run], changes: Changes, runs: list[Run], control: str, *, alone: bool) -> str | None:
    """Why this control was chosen; or, if no setting is compared with it (`alone`), how to compare it.

    taken: its runs, in a group that shares `changes`. runs: all runs of the model and data set. control: the name that the user gave.
    """
    shared = shared_changes(runs)
    plain, name, whole = taken[0].plain, short(taken[0], changes), short(taken[0], shared)
    if alone and whole != plain:
        return f"no other setting has {whole.partition(' ')[2]}; to compare all with this one, type it as {typed_text('control', whole)}"
    missing = ([f"no {USUAL}"] if control == AUTO and plain != USUAL else []) + ([f"no plain {plain}"] if name != plain else [])
    if not missing:
        return None
    others = sorted({short(run, shared) for run in runs} - {whole}, key=natural)
    another = f"; to take another, type it as {typed_text('control', others[0])}" if others else ""
    return f"the control is {name}, since {' and '.join(missing)} ran here{another}"
