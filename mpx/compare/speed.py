"""Which runs' speed counts, and the speed-up of a setting over its control.

Speed counts only for completed runs that had the device to themselves and emulated no format. It is compared only at the control's batch
size, on the control's kind of device, on its host, and with the same driver, PyTorch and source files of mpx. All other comparisons are
refused, with a reason.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mpx.compare.comparison import Estimate, Group, Speedup
from mpx.compare.run import Run
from mpx.compare.statistics import estimate, ratio_interval
from mpx.record.result import EMULATED, HOST, mpx_of


class Place(NamedTuple):
    """Where a speed was measured. Only speeds of the same place are compared."""

    device: str | None
    batch_size: int | None
    kind: tuple[str, ...]  # of its host, as `torch 2.11.0`
    host: str | None  # which changes when the host restarts; None: older records do not tell
    mpx: str | None  # as `0.1.0+1a2b3c4d`, whose end tells its source files


def place_of(run: Run) -> Place:
    kind = tuple(f"{key} {run.environment[key]}" for key in HOST if key in run.environment)
    host = run.environment.get("host")
    return Place(run.device, run.batch_size, kind, None if host is None else str(host), mpx_of(run.environment))


def counted(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.status == "completed" and _refused(run) is None]


def _refused(run: Run) -> str | None:
    if run.train_samples_per_s is None:
        return "no throughput was measured"
    if run.emulated:
        return EMULATED
    if run.exclusive is None:
        return "unknown whether something else used the device, as on every CPU"
    return None if run.exclusive else run.speed_measured or "something else used the device"


def usual_place(runs: Iterable[Run], others: Iterable[Run] = ()) -> Place | None:
    """The most common place of the runs whose speed counts; of several such places, the one at which most of `others` count."""
    return _most_common(map(place_of, counted(runs)), map(place_of, counted(others)))


def place_in(group: Group) -> Place | None:
    """Where the speeds of this group are compared; None without a control whose speed counts."""
    control, *others = group.rows
    return usual_place(control.runs, [run for row in others for run in row.runs]) if group.control else None


def _most_common(found: Iterable[Place], others: Iterable[Place] = ()) -> Place | None:
    places, theirs = Counter(found), Counter(others)
    return min(places, key=lambda place: (-places[place], -theirs[place], str(place))) if places else None


def own_place(place: Place | None, runs: Sequence[Run]) -> Place | None:
    """The place of these runs' speed: the control's `place` if any of them counts there, else their most common one."""
    return place if place and at(place, runs) else usual_place(runs)


def on_one_device(place: Place | None, runs: Sequence[Run]) -> list[Run]:
    """The runs on the device of `place`, or else on the most common one: a GPU's memory and a host's RAM have no common mean."""
    place = place or _most_common(map(place_of, runs))
    return [run for run in runs if place and run.device == place.device]


def left_out(place: Place, runs: Iterable[Run]) -> dict[str, int]:
    """Reason -> number of completed runs whose speed does not count at `place`."""
    out = [run for run in runs if run.status == "completed" and (_refused(run) or place_of(run) != place)]
    return Counter(_refused(run) or _difference(place_of(run), place)[0] for run in out)


def _difference(mine: Place, place: Place) -> tuple[str, str]:
    """How `mine` differs from `place`: what it is there, and what it is at `place`."""
    if mine.device != place.device:
        return f"ran on {mine.device or 'an unknown device'}", f"on {place.device or 'an unknown device'}"
    if mine.batch_size != place.batch_size:
        here, there = (f"batch size {size}" if size else "batches of no usual size" for size in (mine.batch_size, place.batch_size))
        return here, f"with {there}"
    if mine.kind != place.kind:
        other = ", ".join(word for word in mine.kind if word not in place.kind)
        return f"measured with {other or 'unknown versions'}", f"with {', '.join(place.kind) or 'unknown versions'}"
    if mine.host == place.host:
        here, there = (f"with mpx {found}" if found else "with an unknown version of mpx" for found in (mine.mpx, place.mpx))
        return f"measured {here}", there
    if mine.host and place.host:
        return "ran on another host, or before or after a restart of the same one", f"on host {place.host}"
    here, there = (f"on host {found}" if found else "on an unknown host" for found in (mine.host, place.host))
    return f"ran {here}", there


def at(place: Place | None, runs: Iterable[Run]) -> list[Run]:
    """The runs whose speed counts and that ran at `place`."""
    return [run for run in counted(runs) if place_of(run) == place]


def shared(runs: Iterable[Run]) -> Estimate | None:
    """Throughput on devices of one kind that other programs may have used. It is shown with a mark and never compared."""
    runs = [run for run in runs if run.status == "completed" and run.train_samples_per_s is not None and not run.emulated]
    places = [place_of(run)._replace(host=None) for run in runs]
    usual = _most_common(places)
    return throughput([run for run, place in zip(runs, places, strict=True) if place == usual])


def throughput(runs: Sequence[Run]) -> Estimate | None:
    """Mean over measurements. A speed that was measured once for all runs of the setting counts once."""
    own = [run.train_samples_per_s for run in runs if not run.measured_alone]
    return estimate([*own, *sorted({run.train_samples_per_s for run in runs if run.measured_alone})])


def ratio(a: Estimate | None, b: Estimate | None, confidence: float) -> Speedup | None:
    """The ratio of the means, a ÷ b."""
    if a is None or b is None:
        return None
    return Speedup(a.mean / b.mean, *(ratio_interval(a, b, confidence) or (None, None)))


def note(runs: Sequence[Run], place: Place | None, control: str | None) -> str | None:
    """Why these runs' speed is not compared with that of `control`, which ran at `place` (None: its speed does not count).

    control: None for runs of the control itself, or without one.
    """
    completed = [run for run in runs if run.status == "completed"]
    if not completed:
        return "no run completed"
    places = [place_of(run) for run in counted(completed)]
    if not places:
        return "; ".join(dict.fromkeys(_refused(run) for run in completed))
    if control is None or place in places:
        return None
    if place is None:
        return f"the speed of {control} does not count"
    there, here = (dict.fromkeys(words) for words in zip(*(_difference(mine, place) for mine in places), strict=True))
    return f"{'; '.join(there)}, {control} {' and '.join(here)}"
