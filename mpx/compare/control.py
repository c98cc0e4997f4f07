"""The setting that the others are compared with: named by the user, whole or by precision and sparsity, or left open.

Left open (AUTO), it is the dense setting of highest precision that ran, else the sparse one. It never depends on results.
"""

from collections import defaultdict
from collections.abc import Iterable

from mpx.compare.commands import typed_text
from mpx.compare.comparison import Changes, Run
from mpx.compare.names import natural, shared_changes, short

AUTO, USUAL = "auto", "fp32-dense"
PRECISIONS = ("fp32", "o0", "tf32", "amp", "o1", "o2", "amp_bf16", "fp16_true", "o3", "bf16_true", "fp8")  # the highest first


def by_pair(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    pairs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        pairs[run.model, run.data].append(run)
    return pairs


def names(runs: Iterable[Run]) -> list[str]:
    """What a control may be called: every precision-sparsity, then every setting without what all of its model and data set share."""
    runs = list(runs)
    whole = {short(run, shared) for pair in by_pair(runs).values() for shared in [shared_changes(pair)] for run in pair}
    return list(dict.fromkeys([*sorted({run.plain for run in runs}), *sorted(whole, key=natural)]))


def ran(runs: Iterable[Run], control: str) -> bool:
    """Whether any model and data set has this control."""
    if control == AUTO:
        return True
    if " " not in control:
        return any(run.plain == control for run in runs)
    return any(called(control, pair) is not None for pair in by_pair(runs).values())


def called(name: str, runs: list[Run]) -> str | None:
    """The setting, as in Run.setting, that `name` means among the runs of one model and data set. It may leave out what all share."""
    plain, *words = name.split()
    said = dict(word.partition("=")[::2] for word in words).items()
    shared = shared_changes(runs).items()
    for run in runs:
        if run.plain == plain and said <= run.changes.items() <= said | shared:
            return run.setting
    return None


def highest(runs: list[Run]) -> str:
    """The precision-sparsity that others are compared with where the user names none."""
    order = {precision: rank for rank, precision in enumerate(PRECISIONS)}
    best = min(runs, key=lambda run: (run.sparsity != "dense", order.get(run.precision, len(order)), run.precision, run.sparsity))
    return best.plain


def lacking(runs: list[Run], control: str) -> str:
    """Why some runs of a model and data set have no control, and how to compare them. control: its name."""
    shared = shared_changes(runs)
    variants = sorted({short(run, shared) for run in runs if run.plain == control}, key=natural)
    if not variants:
        return f"no run of {control} here to compare with"
    return f"no run of {control} without other changes; to compare all with one that ran, type it as {typed_text('control', variants[0])}"


def note(taken: list[Run], changes: Changes, runs: list[Run], control: str, *, alone: bool) -> str | None:
    """Why this control was taken, or, where it stands `alone`, how to compare it.

    taken: its runs, in a group that shares `changes`. runs: all of the model and data set. control: as the user named it.
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
